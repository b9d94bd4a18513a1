"""How is load made without costing the server its CPU? Raw HTTP/1.1 over asyncio, parsed later.

During a run the client only stores `(time, bytes)` and looks for the reply's end; chunks, events
and JSON are read after the clock has stopped. Invariant: whatever is not a whole, error-free reply
with a usage count is a failure, and its tokens count for nothing.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

Piece = tuple[float, bytes]
REPLY_S_MAX: Final = 180.0
CHUNKED_END: Final = b"\r\n0\r\n\r\n"


@dataclass(slots=True)
class Exchange:
    """One request and what came back. Times are `perf_counter` seconds."""

    started_s: float
    ended_s: float = 0.0
    status: int = 0
    token_times_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None
    text: str = field(default="", repr=False)
    error: str | None = None

    @property
    def total_ms(self) -> float:
        return (self.ended_s - self.started_s) * 1000

    @property
    def ttft_ms(self) -> float:
        """Until the first event that carries text; the whole reply when it was not streamed."""
        first_s = self.token_times_s[0] if self.token_times_s else self.ended_s
        return (first_s - self.started_s) * 1000


@dataclass(slots=True)
class LoadResult:
    """All exchanges of one run, and how long it took from first byte sent to last received."""

    exchanges: list[Exchange]
    wall_s: float

    @property
    def good(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.error is None]

    @property
    def failures(self) -> list[str]:
        return [exchange.error for exchange in self.exchanges if exchange.error is not None]

    @property
    def output_tokens_per_s(self) -> float:
        return sum(exchange.output_tokens for exchange in self.good) / self.wall_s

    @property
    def requests_per_s(self) -> float:
        return len(self.good) / self.wall_s


def run_load(
    url: str, bodies: Sequence[dict[str, Any]], *, concurrency: int, api_key: str = "none"
) -> LoadResult:
    """Send `bodies` to `url`, `concurrency` at a time, each worker on one kept-alive connection."""
    return asyncio.run(load(url, bodies, concurrency=concurrency, api_key=api_key))


async def load(
    url: str, bodies: Sequence[dict[str, Any]], *, concurrency: int, api_key: str = "none"
) -> LoadResult:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    waiting = iter([_http_request(parts.path, host, body, api_key) for body in bodies])
    raw: list[_RawReply] = []

    async def worker() -> None:
        connection = _Connection(host, port)
        raw.extend([await connection.exchange(request) for request in waiting])
        connection.close()

    started_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(min(concurrency, len(bodies)))))
    wall_s = time.perf_counter() - started_s
    return LoadResult([_read(reply) for reply in raw], wall_s)


async def one(url: str, body: dict[str, Any], *, api_key: str = "none") -> Exchange:
    """Send one request on a connection of its own; cancelling it drops the connection."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    connection = _Connection(host, parts.port or 80)
    try:
        return _read(await connection.exchange(_http_request(parts.path, host, body, api_key)))
    finally:
        connection.close()


class Stream:
    """One request whose arrivals can be read while it is still under way."""

    def __init__(self, url: str, body: dict[str, Any], *, api_key: str = "none") -> None:
        parts = urlsplit(url)
        host = parts.hostname or "127.0.0.1"
        self._request = _http_request(parts.path, host, body, api_key)
        self._connection = _Connection(host, parts.port or 80)

    async def run(self) -> None:
        """Read to the end; cancelling it drops the connection."""
        try:
            await self._connection.exchange(self._request)
        finally:
            self._connection.close()

    def events_between(self, start_s: float, end_s: float) -> int:
        """Events (tokens, but for a handful) that arrived in this time."""
        reply = self._connection.reply
        pieces = [] if reply is None else reply.pieces
        return sum(data.count(b"data: {") for at_s, data in pieces if start_s <= at_s < end_s)


def _http_request(path: str, host: str, body: dict[str, Any], api_key: str) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {api_key}\r\nAccept: */*\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@dataclass(slots=True)
class _RawReply:
    started_s: float
    pieces: list[Piece]
    error: str | None


class _Reply(asyncio.Protocol):
    """Stores what arrives; `done` is set at the reply's end or when the connection is lost."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.begin()

    def begin(self) -> None:
        self.pieces: list[Piece] = []
        self.done: asyncio.Future[str | None] = self._loop.create_future()
        self._head: bytes | None = b""
        self._left: int | None = None  # body bytes to come; None: chunked
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))
        if self._head is not None:
            self._head += data
            head, found, body = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._head, self._left = None, _content_length(head)
            data = b"\r\n" + body if self._left is None else body
        self._note_body(data)

    def _note_body(self, data: bytes) -> None:
        if self._left is None:
            self._tail = (self._tail + data)[-len(CHUNKED_END) :]
            ended = self._tail == CHUNKED_END
        else:
            self._left -= len(data)
            ended = self._left <= 0
        if ended and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if not self.done.done():
            self.done.set_result(f"connection lost: {exc or 'closed by the server'}")


class _Connection:
    """One kept-alive connection, opened again when the server closed it between requests."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._reply: _Reply | None = None

    @property
    def reply(self) -> "_Reply | None":
        return self._reply

    async def exchange(self, request: bytes) -> _RawReply:
        """One request; sent once more when a kept-alive connection turned out to be closed."""
        was_open = self._reply is not None and self._reply.transport is not None
        reply = await self._try(request)
        if was_open and reply.error and not reply.pieces:
            return await self._try(request)
        return reply

    async def _try(self, request: bytes) -> _RawReply:
        started_s = time.perf_counter()
        try:
            reply = await self._open()
        except OSError as problem:
            return _RawReply(started_s, [(time.perf_counter(), b"")], f"no connection: {problem}")
        reply.begin()
        assert reply.transport is not None
        reply.transport.write(request)
        try:
            error = await asyncio.wait_for(reply.done, REPLY_S_MAX)
        except TimeoutError:
            error = f"no end within {REPLY_S_MAX:.0f} s"
            reply.transport.abort()
            self._reply = None
        return _RawReply(started_s, reply.pieces, error)

    async def _open(self) -> _Reply:
        if self._reply is None or self._reply.transport is None:
            loop = asyncio.get_running_loop()
            _, self._reply = await loop.create_connection(_Reply, *self._address)
        return self._reply

    def close(self) -> None:
        if self._reply is not None and self._reply.transport is not None:
            self._reply.transport.close()


def _content_length(head: bytes) -> int | None:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return None


# --- after the clock has stopped ----------------------------------------------------------------
def _read(raw: _RawReply) -> Exchange:
    exchange = Exchange(raw.started_s, error=raw.error)
    exchange.ended_s = raw.pieces[-1][0] if raw.pieces else raw.started_s
    try:
        _read_reply(exchange, raw.pieces)
    except (ValueError, IndexError) as problem:
        exchange.error = exchange.error or f"unreadable reply: {problem}"
    if exchange.error is None and not exchange.output_tokens:
        exchange.error = "the reply has no usage count"
    return exchange


def _read_reply(exchange: Exchange, pieces: list[Piece]) -> None:
    whole = b"".join(data for _, data in pieces)
    head, _, body = whole.partition(b"\r\n\r\n")
    exchange.status = int(head.split(b" ", 2)[1])
    chunked = _content_length(head) is None
    spans = list(_chunks(body) if chunked else [(0, len(body))])
    content = b"".join(body[start:end] for start, end in spans)
    if exchange.status != 200:
        text = content[:200].decode(errors="replace")
        exchange.error = exchange.error or f"HTTP {exchange.status}: {text}"
    elif b"text/event-stream" in head.lower():
        _read_events(exchange, content, _Arrivals(pieces, len(head) + 4, spans))
    else:
        _read_plain(exchange, content)


def _chunks(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the content of each HTTP chunk lies in `body`, up to the first incomplete one."""
    position = 0
    while (line_end := body.find(b"\r\n", position)) >= 0:
        size = int(body[position:line_end].split(b";")[0] or b"0", 16)
        start = line_end + 2
        if size == 0 or start + size > len(body):
            return
        yield start, start + size
        position = start + size + 2


class _Arrivals:
    """When was the content complete up to an offset? Asked with growing offsets only."""

    def __init__(self, pieces: list[Piece], body_at: int, spans: list[tuple[int, int]]) -> None:
        self._pieces = iter(pieces)
        self._received = 0
        self._time_s = 0.0
        self._spans = iter(spans)
        self._body_at = body_at
        self._span = (0, 0)
        self._span_content_at = 0

    def time_s(self, content_offset: int) -> float:
        while content_offset > self._span_content_at + self._span[1] - self._span[0]:
            self._span_content_at += self._span[1] - self._span[0]
            self._span = next(self._spans)
        at = self._body_at + self._span[0] + content_offset - self._span_content_at
        while self._received < at:
            self._time_s, data = next(self._pieces)
            self._received += len(data)
        return self._time_s


def _read_events(exchange: Exchange, content: bytes, arrivals: _Arrivals) -> None:
    ended = False
    texts: list[str] = []
    position = 0
    for line in content.splitlines(keepends=True):
        position += len(line)
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            ended = True
            continue
        event = json.loads(payload)
        if "error" in event:
            exchange.error = f"error event: {payload[:200].decode(errors='replace')}"
            return
        text = _take(exchange, event)
        if text:
            texts.append(text)
            exchange.token_times_s.append(arrivals.time_s(position))
    exchange.text = "".join(texts)
    if not ended and exchange.error is None:
        exchange.error = "the stream ended without [DONE]"


def _read_plain(exchange: Exchange, content: bytes) -> None:
    exchange.text = _take(exchange, json.loads(content))


def _take(exchange: Exchange, event: dict[str, Any]) -> str:
    """Note usage and finish reason; return the text of a chunk or reply."""
    usage = event.get("usage")
    if usage:
        exchange.prompt_tokens = usage.get("prompt_tokens", 0)
        exchange.output_tokens = usage.get("completion_tokens", 0)
    text = ""
    for choice in event.get("choices") or []:
        exchange.finish_reason = choice.get("finish_reason") or exchange.finish_reason
        message = choice.get("delta") or choice.get("message") or {}
        text += message.get("content") or choice.get("text") or ""
    return text
