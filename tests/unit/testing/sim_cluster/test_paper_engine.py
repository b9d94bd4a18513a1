"""Does the paper engine produce every token once, when its cost model says so?"""

import pytest

from mantle.core.epoch import FIRST_EPOCH
from mantle.core.ids import RequestId
from mantle.testing.sim_cluster.cost_model import CostModel
from mantle.testing.sim_cluster.invariant import InvariantBroken
from mantle.testing.sim_cluster.paper_engine import PaperEngine, PaperSequence

COST = CostModel(
    prefill_tokens_per_s=1_000.0, step_ms=10.0, step_ms_a_sequence=0.0, prefill_step_factor=1.0
)


def an_engine(slots=4, kv_tokens=1_000, report_tokens=4, cost=COST):
    return PaperEngine(cost, slots, kv_tokens, report_tokens)


def a_sequence(name="r", *, rank=2, prefill=100.0, first_index=0, output=10, kv=100):
    return PaperSequence(RequestId(name), FIRST_EPOCH, rank, prefill, first_index, output, kv)


def run_to_end(engine):
    """Every report with its time."""
    reports = []
    while (due_ms := engine.next_due_ms()) is not None:
        reports += [(due_ms, report) for report in engine.due(due_ms)]
    return reports


def test_tokens_come_in_order_and_end_on_time():
    engine = an_engine()
    engine.admit(a_sequence(), 0.0)
    reports = run_to_end(engine)
    tokens = [i for _, r in reports for i in range(r.first_index, r.first_index + r.count)]
    assert tokens == list(range(10))
    assert reports[0][0] == pytest.approx(100.0)  # the prompt gives the first token
    assert reports[-1][0] == pytest.approx(190.0)
    assert [r.finished for _, r in reports] == [False] * (len(reports) - 1) + [True]


def test_more_sequences_make_longer_steps():
    cost = CostModel(1_000.0, 10.0, 10.0, 1.0)
    engine = an_engine(cost=cost, report_tokens=100)
    for name in "ab":
        engine.admit(a_sequence(name, prefill=0.0, output=11), 0.0)
    assert run_to_end(engine)[-1][0] == pytest.approx(10 * 30.0)


def test_taken_out_sequence_says_what_it_had_produced_and_is_gone():
    engine = an_engine(report_tokens=100)
    engine.admit(a_sequence(output=50), 0.0)
    engine.due(100.0)
    progress = engine.take_out(RequestId("r"), FIRST_EPOCH, 155.0)
    assert (progress.first_index, progress.count, progress.finished) == (1, 5, False)
    assert engine.next_due_ms() is None
    assert len(engine) == 0


def test_higher_lane_is_prefilled_first():
    engine = an_engine()
    for name, rank in (("now", 2), ("flex", 3), ("priority", 1)):
        engine.admit(a_sequence(name, rank=rank, output=1), 0.0)
    assert [report.request_id for _, report in run_to_end(engine)] == ["now", "priority", "flex"]


def test_slow_engine_takes_so_many_times_as_long():
    engine = an_engine()
    engine.admit(a_sequence(), 0.0)
    engine.slow_down(3.0, 0.0)
    assert run_to_end(engine)[-1][0] == pytest.approx(570.0)


def test_more_than_fits_is_refused():
    engine = an_engine(slots=1)
    engine.admit(a_sequence("a"), 0.0)
    with pytest.raises(InvariantBroken, match="slots"):
        engine.admit(a_sequence("b"), 0.0)
    with pytest.raises(InvariantBroken, match="KV"):
        an_engine(kv_tokens=50).admit(a_sequence(), 0.0)
