"""Who reads on for the clients of an earlier server? Keepers, until those clients come back."""

import logging
from collections.abc import Mapping, Sequence

from mantle.core.ids import RequestId
from mantle.gateway.account import Account
from mantle.gateway.again import rebuilt
from mantle.gateway.parts import GatewayParts
from mantle.gateway.serve import settle
from mantle.journal.port import AskHistory
from mantle.scheduler.port import Generation

log = logging.getLogger("mantle.gateway")


async def adopt(
    parts: GatewayParts, histories: Sequence[AskHistory], live: Mapping[RequestId, Generation]
) -> None:
    """Hold every ask of which a request goes on; what cannot be answered any more is cancelled."""
    for history in histories:
        running = [live[one.request.id] for one in history.requests if one.request.id in live]
        if not running:
            continue
        try:
            await _adopt_one(parts, history, live)
        except Exception as error:  # one broken ask must not keep the server from starting
            log.error("%s cannot go on: %s", history.asked.id, type(error).__name__)
            for generation in running:
                generation.cancel()


async def _adopt_one(
    parts: GatewayParts, history: AskHistory, live: Mapping[RequestId, Generation]
) -> None:
    ask = await rebuilt(parts, history, live)
    account = Account(parts.metrics, request_id=history.asked.id, started_ms=parts.clock.now_ms())
    account.model = ask.generations[0].request.model_id
    account.tenant = history.asked.tenant_id
    account.lane = ask.context.lane.value
    answer = ask.own_answer(parts.clock, account)
    parts.asks.add(ask)
    parts.asks.keep(ask, answer, lambda: settle(account, answer))
