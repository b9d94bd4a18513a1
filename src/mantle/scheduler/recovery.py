"""What becomes of a request that an earlier server left behind? The recovery table.

Invariant: every combination of what can be found has exactly one action, and no action shows a
token that was not durable. The first row that fits decides.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mantle.core.outcome import FinishReason, Outcome
from mantle.core.tokens import Usage
from mantle.journal.port import Finished, RequestHistory


class State(StrEnum):
    """How far the request was: over; all its tokens written, but not its end; or under way."""

    OVER = "over"
    FULL = "full"
    OPEN = "open"


class Action(StrEnum):
    """What to do: only show it, write its end, go on after its tokens, or give it up."""

    REPLAY = "replay"
    COMPLETE = "complete"
    RESUME = "resume"
    CANCEL = "cancel"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Found:
    """One request, as recovery sees it.

    `is_kept`: its prompt and tokens were written down; `is_wanted`: its client can find it again
    (by the id of its stream, or by an idempotency key); `is_served`: its model is still here.
    """

    state: State
    is_kept: bool
    is_wanted: bool
    is_served: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; None fits everything."""

    action: Action
    state: State | None = None
    is_kept: bool | None = None
    is_wanted: bool | None = None
    is_served: bool | None = None

    def fits(self, found: Found) -> bool:
        pairs = (
            (self.state, found.state),
            (self.is_kept, found.is_kept),
            (self.is_wanted, found.is_wanted),
            (self.is_served, found.is_served),
        )
        return all(wanted is None or wanted == seen for wanted, seen in pairs)


TABLE: Final = (
    Row(Action.REPLAY, state=State.OVER),
    Row(Action.CANCEL, is_wanted=False),
    Row(Action.FAIL, is_kept=False),
    Row(Action.COMPLETE, state=State.FULL),
    Row(Action.FAIL, is_served=False),
    Row(Action.RESUME),
)


def action_for(found: Found) -> Action:
    """The action of the first row that fits."""
    return next(row.action for row in TABLE if row.fits(found))


def found_of(history: RequestHistory, *, is_wanted: bool, is_served: bool) -> Found:
    """The facts about one request. With a grammar only the engine knows how it ended."""
    request = history.request
    if history.finished is not None:
        state = State.OVER
    elif history.output_count >= request.max_output_tokens and not request.grammar:
        state = State.FULL
    else:
        state = State.OPEN
    return Found(state, request.keeps_content, is_wanted, is_served)


def end_of(history: RequestHistory, action: Action) -> Finished:
    """The record that ends a request which does not go on."""
    outcome, finish = _ENDS[action]
    usage = Usage(history.prompt_count, history.cached_tokens, history.output_count)
    return Finished(history.request.id, outcome, finish, usage)


_ENDS: Final[dict[Action, tuple[Outcome, FinishReason | None]]] = {
    Action.COMPLETE: (Outcome.COMPLETED, FinishReason.LENGTH),
    Action.CANCEL: (Outcome.CANCELLED, None),
    Action.FAIL: (Outcome.FAILED, None),
}
