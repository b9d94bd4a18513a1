"""The worker's loop: turns, budgets, and driver faults that stay where they belong."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mantle.core.errors import EngineFailed, LoadFailed
from mantle.core.sampling import SamplingParams
from mantle.core.script import Script
from mantle.engine.port import (
    Admit,
    Cancel,
    Driver,
    EngineSettings,
    Load,
    Loaded,
    LoadFault,
    LoadReport,
    LoadSpec,
    Park,
    Parked,
    ParkedSequence,
    Resume,
    SequenceOutput,
    SequenceSpec,
    StepBudget,
    Stepped,
    StepReport,
    Unload,
    Unloaded,
    WorkerEvent,
)
from mantle.engine.step_loop import StepLoop
from mantle.testing.in_process_link import sim_driver_maker
from mantle.testing.scripts import load_spec, script_of, write_script
from mantle.testing.sim_clock import SimClock


class FaultyDriver:
    """Obeys until told which call raises what; remembers budgets and its end."""

    def __init__(self) -> None:
        self.raises: dict[str, Exception] = {}
        self.resident: list[int] = []
        self.budgets: list[int] = []
        self.is_closed = False

    def _maybe_raise(self, call: str) -> None:
        if call in self.raises:
            raise self.raises[call]

    def load(self, spec: LoadSpec) -> LoadReport:
        self._maybe_raise("load")
        return LoadReport(0, 0.0, spec.settings.slots, 100, 100, 0)

    def admit(self, sequence: SequenceSpec) -> None:
        self._maybe_raise("admit")
        self.resident.append(sequence.sequence_id)

    def step(self, budget: StepBudget) -> StepReport:
        self._maybe_raise("step")
        self.budgets.append(budget.prefill_tokens_max)
        return StepReport([SequenceOutput(one, 0, [1]) for one in self.resident])

    def has_work(self) -> bool:
        return bool(self.resident)

    def cancel(self, sequence_id: int) -> bool:
        self._maybe_raise("cancel")
        if sequence_id not in self.resident:
            return False
        self.resident.remove(sequence_id)
        return True

    def park(self, sequence_id: int, *, keep_kv: bool) -> ParkedSequence | None:
        self._maybe_raise("park")
        return ParkedSequence(sequence_id, [], bytes(10) if keep_kv else None)

    def resume(self, sequence: SequenceSpec, parked: ParkedSequence) -> None:
        self.admit(sequence)

    def close(self) -> None:
        self.is_closed = True
        self._maybe_raise("close")


SETTINGS = EngineSettings(batch_tokens=100, prefill_chunk_tokens=10)
SPEC = LoadSpec("m", "faulty", "/nowhere", SETTINGS)


def sequence(sequence_id: int, *, output: int = 1000) -> SequenceSpec:
    return SequenceSpec(sequence_id, [65, 66], output, SamplingParams(temperature=0.0))


def loop_over(**drivers: Driver) -> StepLoop:
    """A loop with one loaded replica a driver, named alike."""
    loop = StepLoop(drivers.__getitem__, SimClock())
    for name in drivers:
        spec = LoadSpec("m", name, "/nowhere", SETTINGS)
        assert isinstance(loop.handle(Load(name, spec))[0], Loaded)
    return loop


def scripted_loop(folder: Path, **scripts: Script) -> StepLoop:
    clock = SimClock()
    loop = StepLoop(sim_driver_maker(clock), clock)
    for name, script in scripts.items():
        loop.handle(Load(name, load_spec(write_script(folder, script, name=name))))
    return loop


def outputs_of(events: list[WorkerEvent]) -> list[SequenceOutput]:
    return [out for event in events if isinstance(event, Stepped) for out in event.report.outputs]


def test_replicas_with_work_take_turns_and_idle_ones_are_skipped(tmp_path: Path) -> None:
    endless = script_of("A", repeat=True)
    loop = scripted_loop(tmp_path, a=endless, idle=endless, b=endless)
    loop.handle(Admit("a", sequence(1)))
    loop.handle(Admit("b", sequence(2)))
    turns = [event.replica_id for _ in range(6) for event in loop.step()]
    assert turns == ["a", "b"] * 3


def test_loop_without_residents_has_no_work(tmp_path: Path) -> None:
    loop = scripted_loop(tmp_path, a=script_of("A"))
    assert not loop.has_work()
    assert loop.step() == []


def test_prefill_budget_is_a_chunk_only_while_a_sequence_decodes() -> None:
    driver = FaultyDriver()
    loop = loop_over(a=driver)
    loop.handle(Admit("a", sequence(1)))
    loop.step()
    loop.step()
    loop.handle(Cancel("a", 1))
    loop.handle(Admit("a", sequence(2)))
    loop.step()
    assert driver.budgets == [100, 10, 100]


@pytest.mark.parametrize(
    ("fault", "error"),
    [(EngineFailed("no slot is free"), "no slot is free"), (KeyError("secret prompt"), "KeyError")],
)
def test_refused_admission_ends_that_sequence_only(fault: Exception, error: str) -> None:
    driver = FaultyDriver()
    loop = loop_over(a=driver)
    loop.handle(Admit("a", sequence(1)))
    driver.raises["admit"] = fault
    [output] = outputs_of(loop.handle(Admit("a", sequence(2))))
    assert output.sequence_id == 2
    assert error in (output.error or "")
    assert "secret" not in (output.error or "")
    assert [one.sequence_id for one in outputs_of(loop.step())] == [1]


def test_admission_to_a_replica_that_is_not_there_is_answered() -> None:
    [output] = outputs_of(StepLoop({}.__getitem__, SimClock()).handle(Admit("gone", sequence(1))))
    assert output.error is not None


@pytest.mark.parametrize("fault", [RuntimeError("secret prompt"), EngineFailed("decode failed")])
def test_fault_within_a_step_takes_down_its_replica_and_no_other(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    broken, healthy = FaultyDriver(), FaultyDriver()
    loop = loop_over(broken=broken, healthy=healthy)
    for sequence_id, replica_id in [(1, "broken"), (2, "broken"), (3, "healthy")]:
        loop.handle(Admit(replica_id, sequence(sequence_id)))
    broken.raises["step"] = fault
    broken.raises["close"] = RuntimeError("and again")
    events = loop.step()
    assert [(one.sequence_id, one.error is not None) for one in outputs_of(events)] == [
        (1, True),
        (2, True),
    ]
    assert isinstance(events[-1], LoadFault)
    assert events[-1].replica_id == "broken"
    assert broken.is_closed
    assert [one.sequence_id for one in outputs_of(loop.step())] == [3]
    assert isinstance(loop.handle(Load("broken", SPEC))[0], LoadFault)  # its maker knows no such
    assert "secret" not in caplog.text


@pytest.mark.parametrize(("command", "call"), [(Cancel("a", 1), "cancel"), (Park("a", 1), "park")])
def test_fault_outside_a_step_is_answered_for_every_resident(
    command: Cancel | Park, call: str
) -> None:
    driver = FaultyDriver()
    loop = loop_over(a=driver)
    for sequence_id in (1, 2):
        loop.handle(Admit("a", sequence(sequence_id)))
    driver.raises[call] = RuntimeError()
    events = loop.handle(command)
    assert isinstance(events[-1], LoadFault)
    assert 2 in [one.sequence_id for one in outputs_of(events)]


@pytest.mark.parametrize(
    ("fault", "message"),
    [(LoadFailed("the file is torn"), "the file is torn"), (OSError("/secret/path"), "OSError")],
)
def test_failed_load_says_why_without_internals(fault: Exception, message: str) -> None:
    driver = FaultyDriver()
    driver.raises["load"] = fault
    loop = StepLoop(lambda _name: driver, SimClock())
    [event] = loop.handle(Load("a", SPEC))
    assert isinstance(event, LoadFault)
    assert message in event.message
    assert "secret" not in event.message
    driver.raises.clear()
    assert isinstance(loop.handle(Load("a", SPEC))[0], Loaded)


def test_load_aside_lets_others_step_and_is_adopted_later() -> None:
    jobs: list[Callable[[], None]] = []
    loop = StepLoop(lambda _name: FaultyDriver(), SimClock(), spawn=jobs.append)
    assert loop.handle(Load("a", SPEC)) == []
    assert loop.adopt_loaded() == []
    jobs.pop()()
    assert isinstance(loop.adopt_loaded()[0], Loaded)
    assert loop.adopt_loaded() == []


def test_unload_while_loading_is_answered_when_the_load_ends() -> None:
    jobs: list[Callable[[], None]] = []
    driver = FaultyDriver()
    loop = StepLoop(lambda _name: driver, SimClock(), spawn=jobs.append)
    loop.handle(Load("a", SPEC))
    assert loop.handle(Unload("a")) == []
    jobs.pop()()
    assert loop.adopt_loaded() == [Unloaded("a")]
    assert driver.is_closed


def test_unload_drops_residents_silently_and_cannot_miss() -> None:
    driver = FaultyDriver()
    loop = loop_over(a=driver)
    loop.handle(Admit("a", sequence(1)))
    assert loop.handle(Unload("a")) == [Unloaded("a")]
    assert driver.is_closed
    assert not loop.has_work()
    assert loop.handle(Unload("a")) == [Unloaded("a")]


def test_parked_sequence_resumes_where_it_was(tmp_path: Path) -> None:
    loop = scripted_loop(tmp_path, a=script_of(*"ABCDEF"))
    loop.handle(Admit("a", sequence(1)))
    loop.step()
    [event] = loop.handle(Park("a", 1))
    assert isinstance(event, Parked)
    assert loop.step() == []
    again = msgspec.structs.replace(sequence(2), resume_tokens=[65])
    loop.handle(Resume("a", again, event.sequence_id))
    [output] = outputs_of(loop.step())
    assert (output.sequence_id, output.first_index, output.token_ids) == (2, 1, [66])


def test_commands_for_sequences_that_are_over_are_silent(tmp_path: Path) -> None:
    loop = scripted_loop(tmp_path, a=script_of("A"))
    loop.handle(Admit("a", sequence(1, output=1)))
    assert outputs_of(loop.step())[0].finish is not None
    assert loop.handle(Cancel("a", 1)) == []
    assert loop.handle(Park("a", 1)) == []
    assert loop.handle(Park("gone", 1)) == []


def test_busy_time_is_that_of_the_call_in_progress(tmp_path: Path) -> None:
    clock = SimClock()
    seen: list[float] = []

    class Watched(FaultyDriver):
        def step(self, budget: StepBudget) -> StepReport:
            clock.advance(70)
            seen.append(loop.busy_ms())
            return super().step(budget)

    loop = StepLoop(lambda _name: Watched(), clock)
    loop.handle(Load("a", SPEC))
    loop.handle(Admit("a", sequence(1)))
    assert loop.busy_ms() == 0.0
    loop.step()
    assert seen == [70.0]
    assert loop.busy_ms() == 0.0
