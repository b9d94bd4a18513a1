"""Which URL does what, and who may call it? The gateway's ASGI application.

Invariant: whatever comes in, one well-formed answer goes out in the route's own envelope; all but
the open routes ask for a key before anything else. A bare ASGI callable: a framework's routing
and request objects would cost more than the rest of the gateway's work on a request.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mantle.core.errors import (
    Cancelled,
    MantleError,
    MethodNotAllowed,
    NotFound,
    Unavailable,
)
from mantle.core.outcome import Outcome
from mantle.gateway import anthropic_messages, models, openai_chat, openai_completions, wire_errors
from mantle.gateway.account import Account
from mantle.gateway.auth import authenticate
from mantle.gateway.body import check_media_type, decode
from mantle.gateway.exchange import Exchange
from mantle.gateway.parts import GatewayParts
from mantle.gateway.serve import Turn, serve

JSON: Final = b"application/json"
STATUS_CLIENT_GONE: Final = 499

Handler = Callable[[Turn], Awaitable[None]]
OpenHandler = Callable[[GatewayParts, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One URL: its method, its metric label, what it does."""

    method: str
    label: str
    handler: Handler


def build_app(parts: GatewayParts) -> ASGIApp:
    """The application; it owns nothing that must be closed."""
    return Gateway(parts)


class Gateway:
    """Serves one ASGI connection a call."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(Exchange(scope, receive, send, clock=self._parts.clock))
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, exchange: Exchange) -> None:
        open_handler = OPEN_ROUTES.get(exchange.path)
        if open_handler is not None and exchange.method in ("GET", "HEAD"):
            await open_handler(self._parts, exchange)
            return
        account = Account(
            self._parts.metrics,
            request_id=exchange.request_id,
            started_ms=exchange.started_ms,
        )
        account.client_request_id = exchange.headers.get("x-client-request-id", "")
        try:
            await self._authenticated(exchange, account)
            account.outcome = Outcome.COMPLETED
        except MantleError as error:
            account.outcome = error.outcome
            await _say(exchange, error)
        except Exception as error:  # the actor's outermost edge: counted, logged, answered
            account.outcome = Outcome.FAILED
            account.unhandled(error)
            await _say(exchange, error)
        finally:
            await exchange.close()
            status = STATUS_CLIENT_GONE if _was_left(exchange, account) else exchange.status
            account.finish(status, self._parts.clock.now_ms())

    async def _authenticated(self, exchange: Exchange, account: Account) -> None:
        route = find_route(exchange.path)
        account.route = route.label if route else "unknown"
        principal = authenticate(self._parts.admission, exchange.headers)
        account.tenant = exchange.tenant_id = principal.tenant.id
        if route is None:
            raise NotFound(f"no such URL: {exchange.method} {exchange.path[:256]}")
        if exchange.method != route.method:
            raise MethodNotAllowed(f"{exchange.path[:256]} takes {route.method} only")
        await route.handler(Turn(self._parts, exchange, account, principal))


def _was_left(exchange: Exchange, account: Account) -> bool:
    return exchange.is_gone and account.outcome is Outcome.CANCELLED


async def _say(exchange: Exchange, error: Exception) -> None:
    """Tell the client, by whatever way is still open."""
    if exchange.is_gone:
        return
    if isinstance(error, Cancelled):
        error = Unavailable("the server cancelled this request")
    if exchange.has_started:
        if exchange.error_frame is not None:
            await exchange.write(exchange.error_frame(error), more=False)
        return
    anthropic = exchange.is_anthropic
    envelope = wire_errors.anthropic_envelope if anthropic else wire_errors.openai_envelope
    headers = wire_errors.error_headers(error, anthropic=anthropic, jitter=random.random())
    if isinstance(error, MethodNotAllowed):
        route = find_route(exchange.path)
        headers.append((b"allow", route.method.encode() if route else b"GET, HEAD"))
    status = wire_errors.row_of(error).status_for(anthropic=anthropic)
    body = envelope(error, exchange.request_id)
    await exchange.respond(status, body, content_type=JSON, headers=headers)


# --- what the routes do -------------------------------------------------------------------------
async def _body(turn: Turn) -> bytes:
    check_media_type(turn.exchange.headers.get("content-type"))
    return await turn.exchange.body(bytes_max=turn.parts.settings.body_bytes_max)


async def _chat(turn: Turn) -> None:
    await serve(turn, openai_chat.parse(decode(openai_chat.decoder, await _body(turn))))


async def _completions(turn: Turn) -> None:
    body = decode(openai_completions.decoder, await _body(turn))
    await serve(turn, openai_completions.parse(body))


async def _messages(turn: Turn) -> None:
    body = decode(anthropic_messages.decoder, await _body(turn))
    if turn.parts.settings.strict_api_version:
        anthropic_messages.check_version(turn.exchange.headers.get("anthropic-version"), body)
    await serve(turn, anthropic_messages.parse(body))


async def _count_tokens(turn: Turn) -> None:
    body = decode(anthropic_messages.count_decoder, await _body(turn))
    input_tokens = await anthropic_messages.count(turn, body)
    await turn.exchange.respond_json(anthropic_messages.count_reply(input_tokens))


async def _list_models(turn: Turn) -> None:
    await turn.exchange.respond_json(models.listing(turn.parts, turn.principal))


async def _one_model(turn: Turn) -> None:
    name = turn.exchange.path.split("/v1/models/", 1)[1]
    await turn.exchange.respond_json(models.one(turn.parts, turn.principal, name))


async def _root(parts: GatewayParts, exchange: Exchange) -> None:
    await exchange.respond(200, b'{"service":"mantle"}', content_type=JSON)


async def _health(parts: GatewayParts, exchange: Exchange) -> None:
    await _say_health(exchange, parts.health.is_alive(), parts.health.reason())


async def _ready(parts: GatewayParts, exchange: Exchange) -> None:
    await _say_health(exchange, parts.health.is_ready(), parts.health.reason())


async def _say_health(exchange: Exchange, is_well: bool, reason: str) -> None:
    body = {"status": "ok"} if is_well else {"status": "unavailable", "reason": reason}
    await exchange.respond(200 if is_well else 503, sse.encode(body), content_type=JSON)


async def _metrics(parts: GatewayParts, exchange: Exchange) -> None:
    body, content_type = parts.metrics.render()
    await exchange.respond(200, body, content_type=content_type.encode())


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


# --- the table ----------------------------------------------------------------------------------
OPEN_ROUTES: Final[dict[str, OpenHandler]] = {
    "/": _root,
    "/health": _health,
    "/ready": _ready,
    "/metrics": _metrics,
}
_MODELS: Final = Route("GET", "models", _list_models)
_MODEL: Final = Route("GET", "model", _one_model)
_OPENAI: Final = {
    "/v1/chat/completions": Route("POST", "chat_completions", _chat),
    "/v1/completions": Route("POST", "completions", _completions),
    "/v1/models": _MODELS,
}
_ANTHROPIC: Final = {
    "/v1/messages": Route("POST", "messages", _messages),
    "/v1/messages/count_tokens": Route("POST", "count_tokens", _count_tokens),
    "/v1/models": _MODELS,
}
ROUTES: Final[dict[str, Route]] = {
    **_OPENAI,
    **_ANTHROPIC,
    **{f"/openai{path}": route for path, route in _OPENAI.items()},
    **{f"/anthropic{path}": route for path, route in _ANTHROPIC.items()},
}
_MODEL_PREFIXES: Final = tuple(f"{prefix}/v1/models/" for prefix in ("", "/openai", "/anthropic"))


def find_route(path: str) -> Route | None:
    """The route of a URL; None when there is none."""
    route = ROUTES.get(path)
    if route is None and path.startswith(_MODEL_PREFIXES):
        return _MODEL
    return route
