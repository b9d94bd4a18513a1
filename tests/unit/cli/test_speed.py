"""The speed measurement: decode only, on an injected clock."""

from pathlib import Path

import pytest

from mantle.cli.speed import compare_speeds
from mantle.core.errors import LoadFailed
from mantle.engine.drivers.scripted import ScriptedDriver
from mantle.testing.sim_clock import SimClock


def test_speed_is_decode_tokens_a_second_without_prefill(tmp_path: Path) -> None:
    clock = SimClock()
    paths = []
    for name, step_ms in (("slow", 10), ("fast", 2)):
        path = tmp_path / f"{name}.script.json"
        path.write_text(
            f'{{"reply": ["a"], "repeat": true, "step_ms": {step_ms}, "load_ms": 900,'
            ' "prefill_tokens_per_s": 100}'
        )
        paths.append(path)

    def new_driver() -> ScriptedDriver:
        return ScriptedDriver(pace=lambda seconds: clock.advance(seconds * 1e3), clock=clock)

    slow, fast = compare_speeds(paths, new_driver=new_driver, driver_name="scripted", clock=clock)
    assert (slow, fast) == (pytest.approx(100.0), pytest.approx(500.0))


def test_file_that_cannot_be_loaded_is_a_load_failure(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed):
        compare_speeds([tmp_path / "missing"], new_driver=ScriptedDriver, driver_name="scripted")


def test_round_on_a_slow_machine_ends_early(tmp_path: Path) -> None:
    clock = SimClock()
    path = tmp_path / "crawling.script.json"
    path.write_text('{"reply": ["a"], "repeat": true, "step_ms": 400}')

    def new_driver() -> ScriptedDriver:
        return ScriptedDriver(pace=clock.sleep, clock=clock)

    (speed,) = compare_speeds([path], new_driver=new_driver, driver_name="scripted", clock=clock)
    assert speed == pytest.approx(2.5)
    assert clock.now_ms() < 3 * 2_500
