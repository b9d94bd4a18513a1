"""The recovery table: every input has one action, and the right one."""

import itertools

import pytest

from mantle.core.outcome import FinishReason, Outcome
from mantle.core.tokens import Usage
from mantle.journal.port import RequestHistory
from mantle.scheduler.recovery import (
    TABLE,
    Action,
    Found,
    Row,
    State,
    action_for,
    end_of,
    found_of,
)
from mantle.testing.requests import a_request

BOTH = (True, False)
INPUTS = [Found(*values) for values in itertools.product(State, BOTH, BOTH, BOTH)]


def expected(found: Found) -> Action:
    """The table said again, in other words."""
    if found.state is State.OVER:
        return Action.REPLAY
    if not found.is_wanted:
        return Action.CANCEL
    if not found.is_kept:
        return Action.FAIL
    if found.state is State.FULL:
        return Action.COMPLETE
    return Action.RESUME if found.is_served else Action.FAIL


@pytest.mark.parametrize("found", INPUTS, ids=str)
def test_every_input_has_its_action(found: Found) -> None:
    assert action_for(found) is expected(found)


def test_every_row_decides_something() -> None:
    def row_of(found: Found) -> Row:
        return next(row for row in TABLE if row.fits(found))

    assert len(INPUTS) == 24
    assert {row_of(found) for found in INPUTS} == set(TABLE)


def test_facts_come_from_the_history() -> None:
    request = a_request(max_output_tokens=3)
    history = RequestHistory(request, 10, output=[1, 2], output_count=2)
    found = found_of(history, is_wanted=True, is_served=False)
    assert found == Found(State.OPEN, is_kept=True, is_wanted=True, is_served=False)
    history.output_count = 3
    assert found_of(history, is_wanted=True, is_served=True).state is State.FULL


def test_ends_say_what_was_used() -> None:
    request = a_request(max_output_tokens=3)
    history = RequestHistory(request, prompt_count=7, output_count=3, cached_tokens=2)
    end = end_of(history, Action.COMPLETE)
    assert (end.outcome, end.finish) == (Outcome.COMPLETED, FinishReason.LENGTH)
    assert end.usage == Usage(7, 2, 3)
    assert end_of(history, Action.CANCEL).outcome is Outcome.CANCELLED
    assert end_of(history, Action.FAIL).outcome is Outcome.FAILED
