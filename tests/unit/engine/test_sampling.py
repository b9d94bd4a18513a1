"""Sampling against an independent full-vocabulary reference without any pruning, in plain NumPy."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mantle.core import limits
from mantle.core.sampling import SamplingParams
from mantle.engine.sampling import Choice, Draw, Sampler, TokenHistory

_WORD = (1 << 64) - 1


def _reference_mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def _reference_noise(seed: int, position: int, vocab_size: int) -> np.ndarray:
    """Gumbel noise of every id, one Python integer at a time."""
    gamma = 0x9E3779B97F4A7C15
    stream = _reference_mix((seed + gamma) & _WORD)
    key = _reference_mix((stream + (position + 1) * gamma) & _WORD)
    hashes = [_reference_mix((key + (i + 1) * gamma) & _WORD) >> 32 for i in range(vocab_size)]
    return np.array([-math.log(-math.log((h + 0.5) / 2**32)) for h in hashes])


def _reference_logits(
    raw: np.ndarray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> np.ndarray:
    logits = [np.float32(x) for x in raw]
    for token_id in set(prompt) | set(output):
        factor, value = np.float32(params.repetition_penalty), logits[token_id]
        logits[token_id] = value / factor if value > 0 else value * factor
    for token_id in set(output):
        count = np.float32(list(output).count(token_id))
        logits[token_id] = logits[token_id] - (
            count * np.float32(params.frequency_penalty) + np.float32(params.presence_penalty)
        )
    for token_id, bias in params.logit_bias:
        logits[token_id] = logits[token_id] + np.float32(bias)
    return np.array(logits, np.float64)


def _reference_token(
    raw: np.ndarray,
    params: SamplingParams,
    position: int,
    prompt: Sequence[int],
    output: Sequence[int],
) -> int:
    logits = _reference_logits(raw, params, prompt, output)
    if params.temperature == 0:
        return int(np.flatnonzero(logits == logits.max())[0])
    scaled = (logits - logits.max()) / params.temperature
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if params.top_k:
        order = order[: params.top_k]
    mass = np.exp(scaled[order])
    if params.top_p < 1.0:
        kept, reached = 0, 0.0
        while kept < len(order) and reached < params.top_p * mass.sum():
            reached += mass[kept]
            kept += 1
        order = order[: max(kept, 1)]
    if params.min_p > 0.0:
        order = [i for i in order if math.exp(scaled[i]) >= params.min_p]
    scores = scaled + _reference_noise(params.seed, position, len(scaled))
    best = max(scores[i] for i in order)
    return min(i for i in order if scores[i] == best)


def _choose(row: np.ndarray, draw: Draw) -> Choice:
    choice = Sampler(len(row)).choose(row[None, :], [draw])[0]
    assert choice is not None
    return choice


def _random_params(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    def maybe(value: float, off: float) -> float:
        return value if rng.random() < 0.5 else off

    biased = sorted({int(i) for i in rng.integers(0, vocab_size, 2)})
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.05, 0.7, 1.0, 1.0, 2.0])),
        top_p=maybe(float(rng.uniform(0.01, 1.0)), 1.0),
        top_k=int(maybe(int(rng.integers(1, vocab_size + 10)), 0)),
        min_p=maybe(float(rng.choice([0.01, 0.1, 0.5, 1.0])), 0.0),
        presence_penalty=maybe(float(rng.uniform(-2, 2)), 0.0),
        frequency_penalty=maybe(float(rng.uniform(-2, 2)), 0.0),
        repetition_penalty=maybe(float(rng.uniform(0.8, 1.5)), 1.0),
        logit_bias=tuple((i, float(rng.normal() * 4)) for i in biased)
        if rng.random() < 0.3
        else (),
        seed=int(rng.integers(0, 2**63)) * 2 + 1,
    )


@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_tokens_equal_the_reference_over_random_cases(spread: float) -> None:
    rng = np.random.default_rng(20261201)
    for case in range(700):
        vocab_size = int(rng.choice([2, 17, 256]))
        row = (rng.standard_normal(vocab_size) * spread).astype(np.float32)
        if case % 5 == 0:
            row = np.round(row)  # many equal logits
        params = _random_params(rng, vocab_size)
        prompt = rng.integers(0, vocab_size, 5).tolist()
        output = rng.integers(0, vocab_size, int(rng.integers(0, 12))).tolist()
        draw = Draw(params, len(output), TokenHistory(prompt, output))
        expected = _reference_token(row, params, len(output), prompt, output)
        assert _choose(row, draw).token_id == expected, (case, params)


def test_tokens_equal_the_reference_over_a_large_vocabulary() -> None:
    rng = np.random.default_rng(7)
    row = (rng.standard_normal(20_000) * 2.5).astype(np.float32)
    for position, change in enumerate(
        [{}, {"top_p": 0.95}, {"top_k": 40}, {"min_p": 0.02}, {"temperature": 1.7}] * 3
    ):
        params = replace(SamplingParams(seed=99), **change)  # type: ignore[arg-type]
        expected = _reference_token(row, params, position, [], [])
        assert _choose(row, Draw(params, position)).token_id == expected


GOLDEN = [
    (SamplingParams(seed=0), 0),
    (SamplingParams(seed=0), 1),
    (SamplingParams(seed=2**64 - 1), 0),
    (SamplingParams(seed=42, temperature=0.8, top_p=0.95), 1000),
    (SamplingParams(seed=42, temperature=0.8, top_k=40), 1000),
    (SamplingParams(seed=42, temperature=1.5, min_p=0.01), 3),
    (SamplingParams(temperature=0.0), 5),
]
GOLDEN_IDS = [3713, 3870, 2782, 2852, 230, 2622, 2744]


def _golden_row() -> np.ndarray:
    """Logits made of integer arithmetic only, the same on every machine."""
    ids = np.arange(4096, dtype=np.int64)
    return ((ids * 7919 % 4093) / 4093 * 9).astype(np.float32)


def test_golden_tokens_never_change() -> None:
    chosen = [
        _choose(_golden_row(), Draw(params, position)).token_id for params, position in GOLDEN
    ]
    assert chosen == GOLDEN_IDS


def test_frequencies_match_the_softmax() -> None:
    logits = np.array([2.0, 1.0, 0.0, 0.5, -1.0, 1.5], np.float32)
    temperature, draws = 0.9, 20_000
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum() * draws
    params = SamplingParams(seed=3, temperature=temperature)
    rows = np.broadcast_to(logits, (draws, len(logits)))
    choices = Sampler(len(logits)).choose(rows, [Draw(params, p) for p in range(draws)])
    counts = np.bincount([c.token_id for c in choices if c], minlength=len(logits))
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 20.5  # 5 degrees of freedom: above once in a thousand seeds


def test_neighbouring_seeds_draw_independently() -> None:
    rows = np.zeros((4_000, 4), np.float32)
    draws = [Draw(SamplingParams(seed=seed), 0) for seed in range(4_000)]
    counts = np.bincount([c.token_id for c in Sampler(4).choose(rows, draws) if c], minlength=4)
    assert float(((counts - 1_000) ** 2 / 1_000).sum()) < 16.3  # 3 degrees of freedom


def test_token_does_not_depend_on_the_rest_of_the_batch() -> None:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((16, 3_000)) * 3).astype(np.float32)
    draws = [
        Draw(SamplingParams(seed=i, temperature=i % 3 * 0.6, top_p=0.9 if i % 2 else 1.0), i)
        for i in range(16)
    ]
    together = Sampler(3_000).choose(rows, draws)
    assert together == [Sampler(3_000).choose(rows[i : i + 1], [draws[i]])[0] for i in range(16)]


def test_choosing_leaves_the_logits_as_they_are() -> None:
    row = np.arange(50, dtype=np.float32)
    params = SamplingParams(
        seed=1, logit_bias=((3, 9.0),), repetition_penalty=1.3, logprobs_count=2
    )
    draw = Draw(params, 1, TokenHistory([49], [4]), np.array([48]))
    _choose(row, draw)
    assert np.array_equal(row, np.arange(50, dtype=np.float32))


def test_banned_ids_are_never_chosen_even_when_likeliest() -> None:
    row = np.array([9.0, 1.0, 0.0], np.float32)
    for temperature in (0.0, 1.0):
        draw = Draw(SamplingParams(temperature=temperature), 0, banned_ids=np.array([0]))
        assert _choose(row, draw).token_id != 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_row_without_a_finite_peak_gives_no_token_and_spoils_no_other(value: float) -> None:
    rows = np.zeros((2, 8), np.float32)
    rows[0] = value
    choices = Sampler(8).choose(rows, [Draw(SamplingParams(), 0)] * 2)
    assert choices[0] is None
    assert choices[1] is not None


def test_logprobs_are_of_the_raw_distribution_sorted_and_floored() -> None:
    row = np.array([1.0, 3.0, 3.0, -np.inf, 2.0], np.float32)
    params = SamplingParams(temperature=0.0, logit_bias=((0, 100.0),), logprobs_count=5)
    entry = _choose(row, Draw(params, 0)).logprob
    assert entry is not None
    total = math.log(sum(math.exp(x) for x in row.tolist()))
    assert entry.token_id == 0
    assert entry.logprob == pytest.approx(1.0 - total, abs=1e-5)
    assert [token_id for token_id, _ in entry.top] == [1, 2, 4, 0, 3]
    assert entry.top[-1][1] == limits.LOGPROB_FLOOR
    assert all(math.isfinite(logprob) and logprob <= 0 for _, logprob in entry.top)


def test_logprobs_count_zero_gives_the_chosen_token_only() -> None:
    entry = _choose(np.zeros(4, np.float32), Draw(SamplingParams(logprobs_count=0), 0)).logprob
    assert entry is not None
    assert entry.top == []
    assert entry.logprob == pytest.approx(math.log(0.25), abs=1e-6)
