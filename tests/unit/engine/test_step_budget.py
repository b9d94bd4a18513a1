"""Is a step kept short, and is little lost to interruptions?"""

import pytest

from mantle.engine.port import EngineSettings, StepReport
from mantle.engine.step_budget import CHUNK_TOKENS_MIN, LOST_SHARE_MAX, LOST_WINDOW_MS, StepPlan


def report(prefill=0, decode=0, step_ms=10.0, interrupted=False):
    return StepReport([], prefill, decode, step_ms, interrupted=interrupted)


@pytest.fixture
def plan():
    return StepPlan(EngineSettings(step_ms_target=100.0, prefill_chunk_tokens=512))


def chunk(plan, *, decodes=False, now_ms=1_000.0):
    """What a step may prefill a second after an urgent sequence came."""
    plan.budget(something_decodes=False, urgent_waits=True, now_ms=0.0)
    return plan.budget(
        something_decodes=decodes, urgent_waits=False, now_ms=now_ms
    ).prefill_tokens_max


def test_nothing_is_cut_before_anything_was_measured(plan):
    assert chunk(plan) == 2048
    assert chunk(plan, decodes=True) == 512


def test_chunk_fits_what_decode_leaves_of_the_target(plan):
    for _ in range(50):
        plan.learn(report(decode=8, step_ms=40.0), 0.0)
        plan.learn(report(prefill=100, step_ms=100.0), 0.0)
    assert chunk(plan) == pytest.approx(100, abs=2)
    assert chunk(plan, decodes=True) == pytest.approx(60, abs=2)


def test_slow_decode_leaves_prefill_as_long_again(plan):
    for _ in range(50):
        plan.learn(report(decode=8, step_ms=200.0), 0.0)
        plan.learn(report(prefill=100, step_ms=100.0), 0.0)
    assert chunk(plan, decodes=True) == pytest.approx(200, abs=2)


def test_slow_prefill_still_makes_some_progress(plan):
    plan.learn(report(prefill=100, step_ms=100_000.0), 0.0)
    assert chunk(plan) == CHUNK_TOKENS_MIN


def test_free_prefill_is_not_cut(plan):
    plan.learn(report(prefill=100, step_ms=0.0), 0.0)
    assert chunk(plan) == 2048


def test_target_zero_cuts_nothing():
    plan = StepPlan(EngineSettings(step_ms_target=0.0))
    plan.learn(report(prefill=100, step_ms=1_000.0), 0.0)
    assert chunk(plan) == 2048


def test_urgent_prefill_has_the_step_to_itself(plan):
    assert plan.budget(something_decodes=True, urgent_waits=True, now_ms=0.0).urgent_only
    assert not plan.budget(something_decodes=True, urgent_waits=False, now_ms=0.0).urgent_only


def test_steps_are_longer_while_nobody_is_urgent(plan):
    for _ in range(50):
        plan.learn(report(prefill=100, step_ms=100.0), 0.0)
    assert chunk(plan, now_ms=60_000.0) == pytest.approx(4 * chunk(plan), rel=0.05)


def test_time_lost_to_interruptions_is_bounded(plan):
    now_ms, lost_ms = 0.0, 0.0
    while now_ms < 60_000:
        now_ms += 50.0
        if plan.may_interrupt(50.0, now_ms):
            plan.learn(report(step_ms=50.0, interrupted=True), now_ms)
            lost_ms += 50.0
    assert 0 < lost_ms <= LOST_SHARE_MAX * (now_ms + LOST_WINDOW_MS)


def test_interrupted_step_teaches_no_cost(plan):
    plan.learn(report(prefill=100, step_ms=5.0, interrupted=True), 0.0)
    assert chunk(plan) == 2048
