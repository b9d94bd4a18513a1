"""Who puts an earlier server's requests back to work? Each is looked up in the recovery table.

Invariant: afterwards every request that was found is either live again or has its end written;
what goes on does so after its durable tokens, in a new epoch, through its normal queue.
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

from mantle.core.clock import Clock
from mantle.core.ids import ModelId, RequestId
from mantle.core.outcome import Outcome
from mantle.core.request import Request
from mantle.core.tokens import Usage
from mantle.journal.port import Asked, Finished, Pins, Recovered, RequestHistory
from mantle.scheduler.recovery import Action, action_for, end_of, found_of

log = logging.getLogger("mantle.scheduler")

PinsOf = Callable[[ModelId], Pins | None]
"""What a model is made of today; None: it is not served any more."""


Resumed = TypeVar("Resumed")
Resumed_co = TypeVar("Resumed_co", covariant=True)


class Restorer(Protocol[Resumed_co]):
    """Who goes on with a request or writes its end: the dispatcher, or the simulator's."""

    def restore(self, request: Request, history: RequestHistory, *, exact: bool) -> Resumed_co: ...

    def write_end(self, end: Finished) -> None: ...


def restore(
    dispatcher: Restorer[Resumed], recovered: Recovered, *, pins_of: PinsOf, clock: Clock
) -> dict[RequestId, Resumed]:
    """Requests that go on. The others get their end: in their histories and in the journal."""
    live: dict[RequestId, Resumed] = {}
    done: Counter[Action] = Counter()
    for ask in recovered.asks:
        for history in ask.requests:
            action = _restore_one(dispatcher, ask.asked, history, live, pins_of, clock)
            done[action] += 1
    for request_id, _ in recovered.orphans:
        dispatcher.write_end(Finished(request_id, Outcome.CANCELLED, None, Usage()))
    for damage in recovered.damaged:
        log.error("journal: %s is set aside: %s", damage.id, damage.reason)
    if done:
        counts = ", ".join(f"{action} {count}" for action, count in sorted(done.items()))
        log.info("requests of the last server: %s", counts)
    return live


def _restore_one(
    dispatcher: Restorer[Resumed],
    asked: Asked,
    history: RequestHistory,
    live: dict[RequestId, Resumed],
    pins_of: PinsOf,
    clock: Clock,
) -> Action:
    pins = pins_of(history.request.model_id)
    is_wanted = asked.streams or bool(asked.key_digest)
    action = action_for(found_of(history, is_wanted=is_wanted, is_served=pins is not None))
    if action is Action.RESUME:
        request = rebased(history.request, asked.created_s, clock)
        live[request.id] = dispatcher.restore(request, history, exact=pins == asked.pins)
    elif action is not Action.REPLAY:
        history.finished = end_of(history, action)
        dispatcher.write_end(history.finished)
    return action


def rebased(request: Request, created_s: int, clock: Clock) -> Request:
    """The request on this server's clock: accepted as long ago as it was, its deadline alike."""
    ago_ms = max(0.0, clock.wall_s() - created_s) * 1_000
    accepted_ms = clock.now_ms() - ago_ms
    deadline_ms = request.deadline_ms
    if deadline_ms is not None:
        deadline_ms += accepted_ms - request.accepted_ms
    return dataclasses.replace(request, accepted_ms=accepted_ms, deadline_ms=deadline_ms)
