"""Do the gauges show what their source says at each scrape?"""

import pytest

from mantle.core.ids import ModelId
from mantle.core.lane import Lane
from mantle.observe.metrics import Metrics

KEY = (Lane.STANDARD, ModelId("m"))


def shown(metrics, name):
    lines = metrics.render()[0].decode().splitlines()
    return [line for line in lines if line.startswith(name + "{")]


def test_gauges_are_read_anew_at_each_scrape_and_what_is_gone_is_not_shown():
    metrics = Metrics()
    certificate = {KEY: 0.25}
    metrics.watch(
        queued=dict,
        running=lambda: {KEY: 3},
        certificate=lambda: certificate,
        certificate_highest=lambda: {KEY: 0.5},
        restarts=lambda: 0,
    )
    labels = '{lane="standard",model="m"}'
    assert shown(metrics, "mantle_fairness_certificate") == [
        f"mantle_fairness_certificate{labels} 0.25"
    ]
    assert shown(metrics, "mantle_fairness_certificate_highest") == [
        f"mantle_fairness_certificate_highest{labels} 0.5"
    ]
    assert shown(metrics, "mantle_running_requests") == [f"mantle_running_requests{labels} 3.0"]
    certificate.clear()
    assert shown(metrics, "mantle_fairness_certificate") == []


def test_error_of_an_estimate_counts_both_ways_and_its_ratio_only_for_real_waits():
    metrics = Metrics()
    metrics.wait_over(*KEY, 2_000.0, 3_000.0)
    metrics.wait_over(*KEY, 4_500.0, 3_000.0)
    metrics.wait_over(*KEY, 500.0, 100.0)
    labels = '{lane="standard",model="m"}'
    errors = "mantle_wait_estimate_error_seconds"
    assert shown(metrics, f"{errors}_sum") == [f"{errors}_sum{labels} 2.9"]
    assert shown(metrics, f"{errors}_count") == [f"{errors}_count{labels} 3.0"]
    ratio = "mantle_wait_estimate_ratio"
    (total,) = shown(metrics, f"{ratio}_sum")
    assert float(total.split()[-1]) == pytest.approx(2 / 3 + 1.5)
    assert shown(metrics, f"{ratio}_count") == [f"{ratio}_count{labels} 2.0"]
