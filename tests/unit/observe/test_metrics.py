"""Do the gauges show what their source says at each scrape?"""

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
