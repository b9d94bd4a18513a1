"""`GET /v1/streams/{id}`: go on reading a reply whose connection broke, or read it again.

Invariant: a position that the client names is never sent again, and nothing after it is left out.
"""

from typing import Final
from urllib.parse import parse_qs

from mantle.core.errors import NotFound
from mantle.gateway import field_checks as check
from mantle.gateway.again import answer_again, rebuilt
from mantle.gateway.cursor import Cursor, parse_cursor
from mantle.gateway.exchange import Exchange
from mantle.gateway.held import HeldAsk
from mantle.gateway.serve import Turn

LAST_EVENT_ID: Final = "last-event-id"
STARTING_AFTER: Final = "starting_after"


async def serve_stream(turn: Turn) -> None:
    """The route's handler."""
    turn.exchange.watch()
    ask = await _find(turn, turn.exchange.path.rsplit("/", 1)[1])
    await answer_again(turn, ask, _cursor(turn.exchange, ask))


async def _find(turn: Turn, ask_id: str) -> HeldAsk:
    """The ask, if it is this tenant's. Raises `NotFound`."""
    tenant_id = turn.principal.tenant.id
    ask = turn.parts.asks.find(ask_id)
    if ask is not None and ask.asked.tenant_id == tenant_id:
        return ask
    history = None if ask is not None else await turn.parts.journal.history(ask_id)
    if history is None or history.asked.tenant_id != tenant_id:
        raise NotFound("no such request, or it is not kept any more")
    return await rebuilt(turn.parts, history)


def _cursor(exchange: Exchange, ask: HeldAsk) -> Cursor | None:
    """From where on; None: from the start."""
    given = parse_qs(exchange.query).get(STARTING_AFTER)
    param = STARTING_AFTER if given else LAST_EVENT_ID
    position = given[0] if given else exchange.headers.get(LAST_EVENT_ID)
    if position is None:
        return None
    if not ask.job.stream:
        raise check.invalid(param, "fits streams only; this reply came whole")
    return parse_cursor(position, param, choices=len(ask.asked.choices))
