"""Which URL does what? The handlers and the table that leads to them.

Invariant: a handler is reached only with a verified key, unless its route is an open one.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from mantle.gateway import (
    admin,
    anthropic_messages,
    formats,
    models,
    sse,
)
from mantle.gateway.body import check_media_type, decode
from mantle.gateway.exchange import JSON, Exchange
from mantle.gateway.idempotency import serve_once
from mantle.gateway.parts import GatewayParts
from mantle.gateway.serve import Turn, count
from mantle.gateway.streams import serve_stream

Handler = Callable[[Turn], Awaitable[None]]
OpenHandler = Callable[[GatewayParts, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One URL: its method, its metric label, what it does."""

    method: str
    label: str
    handler: Handler


def find_route(path: str) -> Route | None:
    """The route of a URL; None when there is none."""
    route = ROUTES.get(path)
    if route is None and path.startswith(_MODEL_PREFIXES):
        return _MODEL
    if route is None and path.startswith(_STREAM_PREFIXES):
        return _STREAM
    return route


def method_of(path: str) -> str | None:
    """What `allow` says of a URL; None when there is no such URL."""
    if path.startswith(admin.PREFIX):
        return admin.allowed_methods(path)
    if path in OPEN_ROUTES:
        return "GET, HEAD"
    route = find_route(path)
    return route.method if route else None


# --- what the routes do -------------------------------------------------------------------------
async def _body(turn: Turn) -> bytes:
    check_media_type(turn.exchange.headers.get("content-type"))
    settings = turn.parts.settings
    return await turn.exchange.body(bytes_max=settings.body_bytes_max, idle_s=settings.body_idle_s)


async def _chat(turn: Turn) -> None:
    await _generate(turn, formats.CHAT, await _body(turn))


async def _completions(turn: Turn) -> None:
    await _generate(turn, formats.COMPLETIONS, await _body(turn))


async def _messages(turn: Turn) -> None:
    raw = await _body(turn)
    if turn.parts.settings.strict_api_version:
        body = decode(anthropic_messages.decoder, raw)
        anthropic_messages.check_version(turn.exchange.headers.get("anthropic-version"), body)
    await _generate(turn, formats.MESSAGES, raw)


async def _generate(turn: Turn, label: str, raw: bytes) -> None:
    await serve_once(turn, formats.parse(label, raw), label, raw)


async def _count_tokens(turn: Turn) -> None:
    body = decode(anthropic_messages.count_decoder, await _body(turn))
    input_tokens = await count(turn, body.model, anthropic_messages.Encode(body))
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


# --- the table ----------------------------------------------------------------------------------
OPEN_ROUTES: Final[dict[str, OpenHandler]] = {
    "/": _root,
    "/health": _health,
    "/ready": _ready,
    "/metrics": _metrics,
}
_MODELS: Final = Route("GET", "models", _list_models)
_MODEL: Final = Route("GET", "model", _one_model)
_STREAM: Final = Route("GET", "stream", serve_stream)
_OPENAI: Final = {
    "/v1/chat/completions": Route("POST", formats.CHAT, _chat),
    "/v1/completions": Route("POST", formats.COMPLETIONS, _completions),
    "/v1/models": _MODELS,
}
_ANTHROPIC: Final = {
    "/v1/messages": Route("POST", formats.MESSAGES, _messages),
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
_STREAM_PREFIXES: Final = tuple(f"{prefix}/v1/streams/" for prefix in ("", "/openai", "/anthropic"))
