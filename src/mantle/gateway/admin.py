"""The admin API: who may use it, and which of its URLs does what?

Invariant: nothing happens without the admin key; while there is none, these URLs do not exist.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from mantle.admission.port import TenantAdmin
from mantle.core.errors import MethodNotAllowed, NotFound, Unauthenticated
from mantle.gateway import admin_reports, admin_tenants
from mantle.gateway.auth import keys_of
from mantle.gateway.exchange import Exchange
from mantle.gateway.parts import GatewayParts

PREFIX: Final = "/admin/"

Handler = Callable[..., Awaitable[None]]
Routes = tuple[tuple[re.Pattern[str], Mapping[str, Handler]], ...]
_TABLES: Final[tuple[tuple[Callable[[GatewayParts], object], Routes], ...]] = (
    (lambda parts: parts.admin, admin_tenants.ROUTES),
    (lambda parts: parts.overview, admin_reports.ROUTES),
)
"""What the handlers of a table are given first, and the table."""


async def handle(parts: GatewayParts, exchange: Exchange) -> None:
    """Answer one request of the admin API. Raises any `MantleError`."""
    if parts.admin is None:
        raise NotFound("there is no admin API here")
    _authenticate(parts.admin, exchange.headers)
    for part_of, match, methods in _matches(exchange.path):
        handler = methods.get(exchange.method)
        if handler is None:
            raise MethodNotAllowed(f"this URL takes {', '.join(methods)} only")
        await handler(part_of(parts), exchange, *match.groups())
        return
    raise NotFound(f"no such URL: {exchange.method} {exchange.path[:256]}")


def allowed_methods(path: str) -> str | None:
    """What `allow` says of a URL of the admin API; None when there is no such URL."""
    return next((", ".join(methods) for _, _, methods in _matches(path)), None)


def _matches(
    path: str,
) -> Iterator[tuple[Callable[[GatewayParts], object], re.Match[str], Mapping[str, Handler]]]:
    for part_of, routes in _TABLES:
        for pattern, methods in routes:
            match = pattern.fullmatch(path)
            if match is not None:
                yield part_of, match, methods


def _authenticate(admin: TenantAdmin, headers: dict[str, str]) -> None:
    keys: list[str | None] = [*keys_of(headers)] or [None]
    for key in keys[:-1]:
        try:
            admin.authenticate(key)
        except Unauthenticated:
            continue
        return
    admin.authenticate(keys[-1])
