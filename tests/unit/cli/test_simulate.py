"""Does `mantle simulate` say what it found, and refuse clearly?"""

import json

import pytest
from click.testing import CliRunner

from mantle.cli.main import main
from tests.unit.testing.sim_cluster import trace_samples


def simulate(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def test_report_names_lanes_tenants_and_the_certificate(tmp_path):
    trace = trace_samples.arena(tmp_path, requests=40)
    result = simulate("--trace", trace, "--accelerators", 1, "--slots", 2, "--speedup", 50)
    assert result.exit_code == 0, result.output
    assert "40 requests, by lane" in result.output
    assert "standard" in result.output
    assert "c0" in result.output
    assert "fairness certificate at most" in result.output


def test_report_and_plot_are_written(tmp_path):
    trace = trace_samples.arena(tmp_path, requests=40)
    out = tmp_path / "out"
    result = simulate("--trace", trace, "--accelerators", 1, "--out", out, "--lane", "flex=1")
    assert result.exit_code == 0, result.output
    report = json.loads((out / "report.json").read_text())
    assert report["requests"] == 40
    assert [line["name"] for line in report["lanes"]] == ["flex"]
    assert (out / "served.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--lane", "gold=1", "the names are"),
        ("--weight", "a", "NAME=NUMBER"),
        ("--weight", "a=0", "above 0"),
        ("--seconds", "0", "no requests"),
    ],
)
def test_what_can_not_be_is_refused(tmp_path, option, value, words):
    trace = trace_samples.arena(tmp_path)
    result = simulate("--trace", trace, "--accelerators", 1, option, value)
    assert result.exit_code == 2
    assert words in result.output


def test_unknown_trace_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    result = simulate("--trace", path, "--accelerators", 1)
    assert result.exit_code == 2
    assert "no trace" in result.output
