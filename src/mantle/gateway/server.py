"""Who may call, and what does everybody get back? The gateway's ASGI application.

Invariant: whatever comes in, one well-formed answer goes out in the route's own envelope; all but
the open routes ask for a key before anything else (the admin API for the admin key). A bare ASGI
callable: a framework's routing and request objects would cost more than the rest of the gateway's
work on a request.
"""

import random
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mantle.core.errors import Cancelled, MantleError, MethodNotAllowed, NotFound, Unavailable
from mantle.core.outcome import Outcome
from mantle.gateway import admin, wire_errors
from mantle.gateway.account import Account
from mantle.gateway.auth import authenticate
from mantle.gateway.exchange import JSON, Exchange
from mantle.gateway.parts import GatewayParts
from mantle.gateway.routes import OPEN_ROUTES, find_route, method_of
from mantle.gateway.serve import Turn

STATUS_CLIENT_GONE: Final = 499


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
        if exchange.path.startswith(admin.PREFIX):
            account.route = "admin"
            await admin.handle(self._parts, exchange)
            return
        route = find_route(exchange.path)
        account.route = route.label if route else "unknown"
        principal = authenticate(self._parts.admission, exchange.headers)
        account.tenant = exchange.tenant_id = principal.tenant.id
        if route is None or exchange.method != route.method:
            raise _no_such_route(exchange)
        await route.handler(Turn(self._parts, exchange, account, principal))


def _no_such_route(exchange: Exchange) -> MantleError:
    method = method_of(exchange.path)
    if method is None:
        return NotFound(f"no such URL: {exchange.method} {exchange.path[:256]}")
    return MethodNotAllowed(f"{exchange.path[:256]} takes {method} only")


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
        headers.append((b"allow", (method_of(exchange.path) or "").encode()))
    status = wire_errors.row_of(error).status_for(anthropic=anthropic)
    body = envelope(error, exchange.request_id)
    await exchange.respond(status, body, content_type=JSON, headers=headers)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
