"""The fake engine says exactly its script, at its pace, with its faults."""

from pathlib import Path
from typing import Any

import pytest

from mantle.core.errors import LoadFailed
from mantle.core.outcome import FinishReason
from mantle.core.sampling import SamplingParams
from mantle.core.script import Fault, ReplyRule, Script, Vocabulary
from mantle.engine.drivers.scripted import ScriptedDriver
from mantle.engine.port import SequenceOutput, SequenceSpec, StepBudget, drive_to_end
from mantle.testing.in_process_link import WorkerDied
from mantle.testing.scripts import byte_script, load_spec, pause, script_of, write_script
from mantle.testing.sim_clock import SimClock
from mantle.text.port import ChatMessage
from mantle.text.scripted_text import ScriptedText

BUDGET = StepBudget(prefill_tokens_max=1000)


def die() -> None:
    raise WorkerDied


def driver_of(folder: Path, script: Script, *, clock: SimClock | None = None) -> ScriptedDriver:
    sim = clock or SimClock()
    driver = ScriptedDriver(pace=sim.sleep, clock=sim, die=die)
    driver.load(load_spec(write_script(folder, script)))
    return driver


def sequence(
    sequence_id: int = 1, *, prompt: str = "hi", seed: int = 0, **fields: Any
) -> SequenceSpec:
    fields = {"max_output_tokens": 1000, "sampling": SamplingParams(seed=seed)} | fields
    return SequenceSpec(sequence_id, list(prompt.encode()), **fields)


def run(driver: ScriptedDriver, *specs: SequenceSpec) -> list[SequenceOutput]:
    for spec in specs:
        driver.admit(spec)
    return [one for report in drive_to_end(driver, BUDGET) for one in report.outputs]


def said(script: Script, outputs: list[SequenceOutput]) -> bytes:
    return Vocabulary(script).bytes_of(token for one in outputs for token in one.token_ids)


def test_reply_is_said_piece_by_piece_and_then_the_turn_ends(tmp_path: Path) -> None:
    outputs = run(driver_of(tmp_path, script_of("AB", "C", "AB")), sequence())
    assert [one.token_ids for one in outputs] == [[256], [67], [256], []]
    assert [one.finish for one in outputs] == [None, None, None, FinishReason.END]


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 1000])
def test_bytes_are_said_exactly_wherever_they_are_cut(tmp_path: Path, piece_bytes: int) -> None:
    content = "🌊🏖️🦀 é 漢".encode() + b"\xff\x00"
    script = byte_script(content, piece_bytes=piece_bytes)
    assert said(script, run(driver_of(tmp_path, script), sequence())) == content


def test_one_step_can_say_as_much_as_one_likes(tmp_path: Path) -> None:
    script = byte_script(b"x" * 300_000, piece_bytes=1000, tokens_per_step=301)
    [output] = run(driver_of(tmp_path, script), sequence())
    assert len(said(script, [output])) == 300_000
    assert output.finish is FinishReason.END


def test_first_rule_that_matches_the_prompt_speaks(tmp_path: Path) -> None:
    rules = [ReplyRule(["one"], match="red"), ReplyRule(["two"], match="blue")]
    script = script_of("none", replies=rules)
    driver = driver_of(tmp_path, script)
    for prompt, reply in [("red blue", b"one"), ("a blue", b"two"), ("grey", b"none")]:
        assert said(script, run(driver, sequence(prompt=prompt))) == reply


def test_seed_chooses_the_reply_when_asked(tmp_path: Path) -> None:
    script = Script(replies=[ReplyRule(["a"]), ReplyRule(["b"])], choose="seed")
    driver = driver_of(tmp_path, script)
    replies = [said(script, run(driver, sequence(seed=seed))) for seed in (0, 1, 2)]
    assert replies == [b"a", b"b", b"a"]


def test_echo_says_what_the_last_user_said(tmp_path: Path) -> None:
    script = Script(echo_last_user=True)
    turns = [("user", "first"), ("assistant", "mm"), ("user", "user\nsecond é")]
    prompt = ScriptedText(script).encode_chat([ChatMessage(*turn) for turn in turns])
    spec = SequenceSpec(1, prompt, 1000, SamplingParams())
    assert said(script, run(driver_of(tmp_path, script), spec)) == "user\nsecond é".encode()


def test_echo_of_a_plain_prompt_is_the_prompt(tmp_path: Path) -> None:
    script = Script(echo_last_user=True, bos=True)
    spec = SequenceSpec(1, ScriptedText(script).encode("plain"), 1000, SamplingParams())
    assert said(script, run(driver_of(tmp_path, script), spec)) == b"plain"


def test_ignoring_the_end_starts_the_reply_over(tmp_path: Path) -> None:
    script = script_of("a", "b")
    spec = sequence(max_output_tokens=5, ignore_eos=True)
    assert said(script, run(driver_of(tmp_path, script), spec)) == b"ababa"


@pytest.mark.parametrize("dials", [{}, {"repeat": True}])
def test_empty_reply_ends_at_once(tmp_path: Path, dials: dict[str, bool]) -> None:
    [output] = run(driver_of(tmp_path, Script(**dials)), sequence())
    assert (output.token_ids, output.finish) == ([], FinishReason.END)


def test_dials_set_the_pace_of_load_prefill_step_and_pause(tmp_path: Path) -> None:
    clock = SimClock()
    script = script_of("a", pause(500), "b", load_ms=2_000, step_ms=10, prefill_tokens_per_s=100)
    driver = driver_of(tmp_path, script, clock=clock)
    assert clock.now_ms() == 2_000
    driver.admit(sequence(prompt="x" * 20))
    steps_ms = [report.step_ms for report in drive_to_end(driver, BUDGET)]
    assert steps_ms == pytest.approx([210, 510, 10])


def test_resumed_sequence_says_the_rest(tmp_path: Path) -> None:
    script = script_of(*"ABCDEF")
    outputs = run(driver_of(tmp_path, script), sequence(resume_tokens=list(b"ABC")))
    assert outputs[0].first_index == 3
    assert said(script, outputs) == b"DEF"


def test_death_comes_in_the_step_after_its_token_and_not_to_one_resumed_there(
    tmp_path: Path,
) -> None:
    script = script_of(*"ABCD", fault=Fault("die", after_output_tokens=2))
    driver = driver_of(tmp_path, script)
    driver.admit(sequence())
    got = [driver.step(BUDGET).outputs[0].token_ids for _ in range(2)]
    assert got == [[65], [66]]
    with pytest.raises(WorkerDied):
        driver.step(BUDGET)
    again = driver_of(tmp_path, script)
    assert said(script, run(again, sequence(resume_tokens=list(b"AB")))) == b"CD"


def test_stall_holds_one_step_for_its_time(tmp_path: Path) -> None:
    clock = SimClock()
    fault = Fault("stall", after_output_tokens=1, stall_ms=90_000)
    driver = driver_of(tmp_path, script_of(*"AB", fault=fault), clock=clock)
    driver.admit(sequence())
    assert [report.step_ms for report in drive_to_end(driver, BUDGET)] == [0, 90_000, 0]


def test_failing_sequence_harms_no_other_and_only_as_often_as_said(tmp_path: Path) -> None:
    fault = Fault("fail_sequence", after_output_tokens=1, match="bad", times=2)
    driver = driver_of(tmp_path, script_of(*"AB", fault=fault))
    specs = [sequence(1, prompt="good"), *(sequence(n, prompt="bad") for n in (2, 3, 4))]
    outputs = run(driver, *specs)
    broken = [one.sequence_id for one in outputs if one.error is not None]
    ended = [one.sequence_id for one in outputs if one.finish is not None]
    assert (broken, ended) == ([2, 3], [1, 4])


def test_load_fault_refuses_every_load(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="loading fails"):
        driver_of(tmp_path, Script(fault=Fault("fail_load")))


def test_unknown_dial_is_a_load_failure_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "typo.script.json"
    path.write_text('{"reply": ["a"], "stepms": 3}')
    with pytest.raises(LoadFailed, match="stepms"):
        ScriptedDriver().load(load_spec(path))
