"""How much KV a model gets: pure arithmetic over settings and a budget."""

import pytest

from mantle.core.errors import LoadFailed
from mantle.engine.drivers.llama_memory import KvPlan, kv_budget_bytes, plan_kv
from mantle.engine.port import EngineSettings


def _plan(settings: EngineSettings, budget_tokens: int, trained: int = 8192) -> KvPlan:
    return plan_kv(
        settings, window_trained_tokens=trained, bytes_per_token=10, budget_bytes=10 * budget_tokens
    )


def test_settings_hold_when_they_fit() -> None:
    plan = _plan(EngineSettings(slots=4, window_tokens=1000), 1_000_000)
    assert plan == KvPlan(4, 1000, 4 * 1024, streams=True)


def test_window_zero_means_the_models_own_and_larger_ones_are_clamped() -> None:
    assert _plan(EngineSettings(slots=2), 1_000_000).window_tokens == 8192
    assert _plan(EngineSettings(window_tokens=9_000), 1_000_000).window_tokens == 8192


def test_slots_are_lowered_before_the_window() -> None:
    plan = _plan(EngineSettings(slots=16), 3 * 8192 + 5)
    assert (plan.slots, plan.window_tokens) == (3, 8192)


def test_window_is_lowered_when_even_one_slot_does_not_fit() -> None:
    plan = _plan(EngineSettings(slots=16), 1_024)
    assert (plan.slots, plan.window_tokens, plan.cells) == (1, 1_024, 1_024)


def test_unified_layout_keeps_slots_and_shares_fewer_cells() -> None:
    plan = _plan(EngineSettings(slots=16, kv_layout="unified"), 3 * 8192)
    assert (plan.slots, plan.cells, plan.streams) == (16, 3 * 8192, False)


def test_no_room_for_a_useful_window_is_a_failed_load() -> None:
    with pytest.raises(LoadFailed):
        _plan(EngineSettings(), 100)


def test_this_machine_has_a_budget() -> None:
    assert kv_budget_bytes() > 0
