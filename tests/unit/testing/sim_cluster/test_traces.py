"""Is every public format read as it is meant?"""

from itertools import pairwise

import pytest

from mantle.testing.sim_cluster.arrival import Arrival, sped_up
from mantle.testing.sim_cluster.traces import TraceUnreadable, read_trace
from tests.unit.testing.sim_cluster import trace_samples


def test_azure_times_count_from_the_first_request(tmp_path):
    assert read_trace(trace_samples.azure(tmp_path)) == [
        Arrival(0.0, "azure", 374, 44),
        Arrival(4_000.0, "azure", 396, 1),
    ]


def test_mooncake_lines_are_milliseconds(tmp_path):
    assert read_trace(trace_samples.mooncake(tmp_path)) == [
        Arrival(0.0, "mooncake", 6758, 500),
        Arrival(1_500.0, "mooncake", 10, 5),
    ]


def test_arena_keeps_its_tenants(tmp_path):
    arrivals = read_trace(trace_samples.arena(tmp_path))
    assert arrivals[:2] == [Arrival(0.0, "c0", 10, 20), Arrival(500.0, "c1", 11, 21)]
    assert len(read_trace(trace_samples.arena(tmp_path), seconds=1.0)) == 2


def test_speedup_scales_time_only(tmp_path):
    arrivals = sped_up(read_trace(trace_samples.arena(tmp_path)), 2.0)
    assert arrivals[1] == Arrival(250.0, "c1", 11, 21)


def test_servegen_draws_the_published_rate_from_the_busiest_window(tmp_path):
    arrivals = read_trace(trace_samples.servegen(tmp_path), seed=1)
    counts = {name: sum(a.tenant == name for a in arrivals) for name in ("c1", "c2")}
    assert 4_000 < counts["c1"] < 5_600  # 600 s × 8/s
    assert 200 < counts["c2"] < 400
    assert all(0 <= a.at_ms < 600_000 for a in arrivals)
    assert {10 <= a.input_tokens <= 30 for a in arrivals} == {True}
    assert arrivals == sorted(arrivals, key=lambda a: a.at_ms)


def test_servegen_gaps_vary_as_published(tmp_path):
    times = [a.at_ms for a in read_trace(trace_samples.servegen(tmp_path)) if a.tenant == "c1"]
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation / mean == pytest.approx(2.0, rel=0.2)


def test_servegen_seed_repeats_and_matters(tmp_path):
    path = trace_samples.servegen(tmp_path)
    assert read_trace(path, seed=1) == read_trace(path, seed=1)
    assert read_trace(path, seed=1) != read_trace(path, seed=2)


def test_servegen_without_lengths_says_so(tmp_path):
    path = trace_samples.servegen(tmp_path)
    (tmp_path / "s_lengths.json").unlink()
    with pytest.raises(TraceUnreadable, match="s_lengths"):
        read_trace(path)


def test_unknown_columns_are_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(TraceUnreadable, match="no trace"):
        read_trace(path)


def test_broken_line_is_named(tmp_path):
    path = trace_samples.arena(tmp_path)
    path.write_text(path.read_text() + "soon,1,2,3\n")
    with pytest.raises(TraceUnreadable, match="line 6"):
        read_trace(path)
    jsonl = trace_samples.mooncake(tmp_path)
    jsonl.write_text(jsonl.read_text() + "{}\n")
    with pytest.raises(TraceUnreadable, match="line 3"):
        read_trace(jsonl)
