"""How far may a slot out of turn put a tenant ahead of those whose slots it takes?"""

import pytest

from mantle.testing.requests import a_request
from tests.unit.scheduler.runs import ready


def ran(scheduler, request):
    """It came, ran and went before anybody else did."""
    scheduler.submit([request], 0.0)
    scheduler.tokens_produced(request.id, count=1, cached_tokens=0, now_ms=0.0)
    scheduler.released(request.id, 0.0)


@pytest.mark.parametrize(("largest_prompt", "may_go_first"), [(1, False), (200, True)])
def test_slot_out_of_turn_puts_nobody_further_ahead_than_the_largest_cost(
    largest_prompt, may_go_first
):
    scheduler = ready(slots=3)
    ran(scheduler, a_request("c", prompt_tokens=largest_prompt, max_output_tokens=1))
    ran(scheduler, a_request("b", prompt_tokens=100, max_output_tokens=1))
    for _ in range(4):  # the last one waits, and it is its tenant's turn
        scheduler.submit([a_request("a", prompt_tokens=10, max_output_tokens=2)], 1.0)
    # a has had 42, b 102 and no slot: with another 90 b would be 150 ahead
    effects = scheduler.submit([a_request("b", prompt_tokens=86, max_output_tokens=2)], 1_000.0)
    assert bool(effects) is may_go_first
