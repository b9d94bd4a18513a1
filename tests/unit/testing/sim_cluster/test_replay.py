"""Does a replay count what happened, and does the picture show it?"""

from xml.etree import ElementTree

import pytest

from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.testing.sim_cluster.arrival import Arrival
from mantle.testing.sim_cluster.plot import plot_svg
from mantle.testing.sim_cluster.replay import Pool, replay
from mantle.testing.sim_cluster.report import report_of
from mantle.testing.sim_cluster.service_windows import ServiceWindows, jain_index

BURST = [Arrival(0.0, name, 100, 100) for name in "ab" for _ in range(200)]


def test_everything_is_served_and_counted_once():
    report = report_of(replay(BURST, Pool(2, 4)))
    assert report.requests == 400
    assert sum(line.completed for line in report.tenants) == 400
    assert sum(line.served_cost for line in report.lanes) == 400 * (100 + 2 * 100)
    assert report.certificate_max <= 1


def test_weights_show_in_the_service_while_both_wait():
    pool = Pool(2, 4, weights={TenantId("a"): 3.0})
    run = replay(BURST, pool, window_ms=5_000.0)
    a, b = (run.timeline.cumulative(name, 10)[-1] for name in "ab")
    assert a / b == pytest.approx(3.0, rel=0.2)


def test_lanes_are_mixed_by_seed():
    pool = Pool(2, 4, lanes={Lane.PRIORITY: 0.5, Lane.FLEX: 0.5})
    lines = {line.name: line for line in report_of(replay(BURST, pool, seed=3)).lanes}
    assert set(lines) == {"priority", "flex"}
    assert lines["priority"].wait_ms_p50 < lines["flex"].wait_ms_p50


def test_utilisation_is_what_one_request_leaves():
    arrivals = [Arrival(0.0, "a", 1, 100), Arrival(10_000.0, "a", 1, 1)]
    run = replay(arrivals, Pool(1, 2))
    first = run.watcher.lives[0]
    assert report_of(run).utilisation == pytest.approx(first.ended_ms / 20_000.0)


def test_request_longer_than_the_window_is_cut_to_it():
    run = replay([Arrival(0.0, "a", 10**6, 10)], Pool(1, 1, window_tokens=1_000))
    assert len(run.watcher.lives[0].request.prompt_tokens) == 1_000 - 16


def test_the_plot_is_svg_with_a_line_a_tenant():
    run = replay([*BURST, Arrival(0.0, "<x>", 10, 10)], Pool(2, 4))
    root = ElementTree.fromstring(plot_svg(run, report_of(run), title="a & b"))
    curves = [element for element in root if element.tag.endswith("polyline")]
    assert len(curves) == 3


def test_jain_index():
    assert jain_index([5.0, 5.0]) == pytest.approx(1.0)
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain_index([0.0, 0.0]) == 1.0


def test_unequal_service_of_waiting_tenants_shows_in_the_windows():
    windows = ServiceWindows(lambda _: 1.0, window_ms=1_000.0)
    a, b = TenantId("a"), TenantId("b")
    for tenant_id in (a, b):
        windows.waits(tenant_id, 0.0)
    windows.flies(a, 10.0, 1_000.0)
    windows.served(a, 60.0, 1_500.0)
    windows.served(b, 0.0, 2_000.0)
    assert (windows.compared, windows.highest) == (1, 3.0)
