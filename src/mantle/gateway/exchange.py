"""One HTTP request and its response: what came in, what has gone out, is the client still there?

Invariant: exactly one response starts; once it has, errors can only be said inside it
(`error_frame`). The client's departure is reported once, to whoever registered with `on_gone`.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from mantle.admission.port import RateLimits
from mantle.core import limits
from mantle.core.clock import Clock
from mantle.core.errors import BodyTooLarge, Cancelled, DeadlineExceeded
from mantle.core.ids import new_id
from mantle.gateway.rate_headers import anthropic_headers, openai_headers

Header = tuple[bytes, bytes]

JSON: Final = b"application/json"


class Exchange:
    """State of one request; lives as long as its ASGI call."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        clock: Clock,
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"].rstrip("/") or "/"
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.headers: dict[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        self.started_ms = clock.now_ms()
        self.is_anthropic = speaks_anthropic(self.path, self.headers)
        self.tenant_id = ""
        self.request_id = new_id("req_")
        self.is_gone = False
        self.has_started = False
        self.status = 0
        self.rate_limits: Callable[[], RateLimits | None] | None = None
        self.extra_headers: list[Header] = []  # of the reply, whatever form it takes
        self.error_frame: Callable[[Exception], bytes] | None = None
        self._clock = clock
        self._receive = receive
        self._send = send
        self._on_gone: Callable[[], None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    # --- in ---------------------------------------------------------------------------------
    async def body(self, *, bytes_max: int, idle_s: float = limits.BODY_IDLE_S_MAX) -> bytes:
        """The whole body. Raises `BodyTooLarge`, `Cancelled`, or `DeadlineExceeded` when its next
        part does not come within `idle_s`.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > bytes_max:
            raise _too_large(bytes_max)
        parts: list[bytes] = []
        size_bytes = 0
        while True:
            message = await self._next_part(idle_s)
            if message["type"] == "http.disconnect":
                self.is_gone = True
                raise Cancelled("the client went away")
            part = message.get("body", b"")
            size_bytes += len(part)
            if size_bytes > bytes_max:
                raise _too_large(bytes_max)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _next_part(self, idle_s: float) -> Message:
        try:
            async with asyncio.timeout(idle_s):
                return await self._receive()
        except TimeoutError:
            raise DeadlineExceeded("the body did not come") from None

    def watch(self) -> None:
        """Notice the client's departure from now on; call after the body was read."""
        self._watcher = asyncio.create_task(self._await_departure(), name="gateway-departure")

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` when the client leaves (now, if it has left)."""
        self._on_gone = callback
        if self.is_gone and callback is not None:
            callback()

    def raise_if_gone(self) -> None:
        if self.is_gone:
            raise Cancelled("the client went away")

    async def _await_departure(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        if self._on_gone is not None:
            self._on_gone()

    async def close(self) -> None:
        """Stop watching; no task is left behind."""
        if self._watcher is None:
            return
        watcher, self._watcher = self._watcher, None
        watcher.cancel()
        await asyncio.wait([watcher])

    # --- out --------------------------------------------------------------------------------
    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Send the status line and headers."""
        assert not self.has_started, "a second response"
        self.has_started = True
        self.status = status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    *headers,
                    *self.extra_headers,
                    *self._identity_headers(),
                    *self._limit_headers(status),
                ],
            }
        )

    def _identity_headers(self) -> list[Header]:
        request_id = self.request_id.encode()
        if self.is_anthropic:
            tenant_id = self.tenant_id.encode("ascii", "replace")
            return [(b"request-id", request_id), (b"anthropic-organization-id", tenant_id)]
        return [
            (b"x-request-id", request_id),
            (b"openai-processing-ms", b"%d" % self.elapsed_ms()),
            (b"openai-version", b"2020-10-01"),
        ]

    def _limit_headers(self, status: int) -> list[Header]:
        """The tenant's own limits on the model, as they stand when the response starts."""
        limits = self.rate_limits() if self.rate_limits is not None else None
        if limits is None:
            return []
        if not self.is_anthropic:
            return openai_headers(limits)
        headers = anthropic_headers(limits, wall_s=self._clock.wall_s())
        if status < 400:  # refusals say it themselves
            headers.append((b"anthropic-ratelimit-unified-status", b"allowed"))
        return headers

    def elapsed_ms(self) -> float:
        return self._clock.now_ms() - self.started_ms

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        """Send part of the body; `more=False` ends the response."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def respond(
        self, status: int, body: bytes, *, content_type: bytes, headers: Iterable[Header] = ()
    ) -> None:
        """Send a whole response."""
        length = str(len(body)).encode()
        await self.start(
            status, [(b"content-type", content_type), (b"content-length", length), *headers]
        )
        await self.write(b"" if self.method == "HEAD" else body, more=False)

    async def respond_json(self, body: bytes, headers: Iterable[Header] = ()) -> None:
        await self.respond(200, body, content_type=JSON, headers=headers)


def speaks_anthropic(path: str, headers: dict[str, str]) -> bool:
    """Which envelope: by route; the shared model list by the client's version header."""
    if path.startswith(("/v1/messages", "/anthropic")):
        return True
    return path.startswith("/v1/models") and "anthropic-version" in headers


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is over the limit of {bytes_max} bytes")
