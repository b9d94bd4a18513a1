"""Which token comes next? A pure function of (logits, parameters, seed, position): design law 7.

Order, as in Hugging Face's and vLLM's chains: repetition penalty (prompt and output tokens),
frequency and presence penalties (output tokens), logit_bias, banned ids, grammar; then temperature,
top_k, top_p (over what top_k left), min_p; then the largest scaled logit + Gumbel noise of
(seed, position, id). Equal values go to the lower id everywhere. Invariant: a row's token never
depends on the other rows, and nothing survives a call but scratch memory; ids that cannot win are
skipped only by bounds that hold exactly.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mantle.core import limits
from mantle.core.sampling import SamplingParams
from mantle.engine.logprobs import IdArray, LogitRow, logprob_entry
from mantle.engine.noise import NOISE_RANGE, NoiseField, bits_above, gumbel, noise_key
from mantle.engine.port import LogprobEntry
from mantle.engine.truncation import NucleusTest, depth_of_min_p, kept_ids

_TEMPERATURE_MIN: Final = 1e-6
"""Smaller temperatures count as this one. Beyond: 1/temperature overflows."""

_NEAR: Final = 6.0
"""Scaled logits within this of the largest get their noise first; the winner is usually there."""

_ROUNDING_SLACK: Final = 1e-3
"""Added to bounds on scaled logits, so that float32 rounding never drops an id that could win."""

Logits = NDArray[np.float32]


class TokenHistory:
    """What penalties look at: which ids the prompt holds, and how often each was output."""

    __slots__ = ("_output_counts", "_prompt_ids")

    def __init__(self, prompt_tokens: Sequence[int], output_tokens: Iterable[int] = ()) -> None:
        self._prompt_ids = frozenset(prompt_tokens)
        self._output_counts: dict[int, int] = {}
        for token_id in output_tokens:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        self._output_counts[token_id] = self._output_counts.get(token_id, 0) + 1

    def penalise(self, row: LogitRow, params: SamplingParams) -> None:
        """Apply the three penalties to `row` in place."""
        if params.repetition_penalty != 1.0:
            seen = np.fromiter(self._prompt_ids.union(self._output_counts), np.int64)
            values = row[seen]
            factor = np.float32(params.repetition_penalty)
            row[seen] = np.where(values > 0, values / factor, values * factor)
        if self._output_counts and (params.frequency_penalty or params.presence_penalty):
            ids = np.fromiter(self._output_counts.keys(), np.int64)
            counts = np.fromiter(self._output_counts.values(), np.float32)
            row[ids] -= counts * np.float32(params.frequency_penalty) + np.float32(
                params.presence_penalty
            )


@dataclass(frozen=True, slots=True)
class Draw:
    """What decides one row's token beside its logits. `position` counts output tokens from 0.

    `history` is needed only when `params.has_penalties`; `banned_ids` are never chosen, and of all
    ids only those that are `allowed` (per id; None: all).
    """

    params: SamplingParams
    position: int
    history: TokenHistory | None = None
    banned_ids: IdArray | None = None
    allowed: NDArray[np.bool_] | None = None

    @property
    def adjusts(self) -> bool:
        """True when the row's logits must be changed before choosing."""
        params = self.params
        is_limited = self.banned_ids is not None or self.allowed is not None
        return is_limited or bool(params.logit_bias) or params.has_penalties


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen token, and its log-probability when the parameters ask for it."""

    token_id: int
    logprob: LogprobEntry | None = None


class Sampler:
    """Chooses one token a row of logits. Holds scratch memory only; one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        self._adjusted = np.empty(vocab_size, np.float32)
        self._scratch = np.empty(vocab_size, np.float32)
        self._noise = NoiseField(vocab_size)

    def choose(self, logits: Logits, draws: Sequence[Draw]) -> list[Choice | None]:
        """One choice a row, in order; None for a row without a usable (finite) largest logit.

        `logits` (rows × vocabulary) is only read.
        """
        top_ids = logits.argmax(axis=1).tolist()
        return [
            self._choose_row(row, draw, top_id)
            for row, draw, top_id in zip(logits, draws, top_ids, strict=True)
        ]

    def logprob_of(self, row: LogitRow, token_id: int, top_count: int) -> LogprobEntry:
        """Log-probability of a given (prompt) token; the floor when the row is unusable."""
        if not np.isfinite(row.max()):
            return LogprobEntry(token_id, limits.LOGPROB_FLOOR)
        return logprob_entry(row, token_id, top_count, self._scratch)

    def _choose_row(self, raw: LogitRow, draw: Draw, top_id: int) -> Choice | None:
        row, params = raw, draw.params
        if not math.isfinite(raw[top_id]):
            return None
        if draw.adjusts:
            row = self._adjust(raw, draw)
            top_id = int(row.argmax())
            if not math.isfinite(row[top_id]):
                return None
        if params.is_greedy or params.top_k == 1:
            token_id = top_id
        else:
            token_id = self._sample(row, draw, float(row[top_id]))
        if params.logprobs_count is None:
            return Choice(token_id)
        entry = logprob_entry(raw, token_id, params.logprobs_count, self._scratch)
        return Choice(token_id, entry)

    def _adjust(self, raw: LogitRow, draw: Draw) -> LogitRow:
        row, params = self._adjusted, draw.params
        np.copyto(row, raw)
        if params.has_penalties and draw.history is not None:
            draw.history.penalise(row, params)
        for token_id, bias in params.logit_bias:
            if token_id < len(row):
                row[token_id] += np.float32(bias)
        if draw.banned_ids is not None:
            row[draw.banned_ids] = -np.inf
        if draw.allowed is not None:
            np.copyto(row, -np.inf, where=~draw.allowed)
        return row

    def _sample(self, row: LogitRow, draw: Draw, peak: float) -> int:
        params = draw.params
        key = noise_key(params.seed, draw.position)
        temperature = max(params.temperature, _TEMPERATURE_MIN)
        depth = depth_of_min_p(params.min_p)
        if params.top_k == 0 and params.top_p >= 1.0:
            return self._loudest(row, peak, temperature, depth, key, near_only=depth <= _NEAR)
        if params.top_k == 0:
            nucleus = NucleusTest(row, peak, temperature, params.top_p, self._scratch)
            near = np.flatnonzero(row >= np.float32(peak - _NEAR * temperature))
            near_only = depth <= _NEAR or nucleus.is_within(near)
            token_id = self._loudest(row, peak, temperature, depth, key, near_only=near_only)
            if nucleus.surely_has(token_id):
                return token_id
        ids = kept_ids(row, peak, temperature, params)
        scaled = _scaled(row, ids, peak, temperature)
        alive = scaled >= -min(depth, NOISE_RANGE)
        ids = ids[alive]
        return _winner(ids, scaled[alive] + gumbel(key, ids))

    def _loudest(
        self,
        row: LogitRow,
        peak: float,
        temperature: float,
        depth: float,
        key: int,
        *,
        near_only: bool,
    ) -> int:
        """Gumbel-max over all ids within `depth` of the peak, in two passes (or the first alone).

        1. Ids near the peak get their noise; the best score of them is the score to beat.
        2. Of the others only those can win whose noise exceeds a common bound, so whose hash does.
        """
        near_bound = np.float32(peak - min(depth, _NEAR) * temperature)
        ids = np.flatnonzero(row >= near_bound)
        scaled = _scaled(row, ids, peak, temperature)
        if depth <= _NEAR:
            alive = scaled >= -depth
            ids, scaled = ids[alive], scaled[alive]
        scores = scaled + gumbel(key, ids)
        if near_only:
            return _winner(ids, scores)
        far = self._noise.loud_ids(key, bits_above(float(scores.max()) + _NEAR - _ROUNDING_SLACK))
        far = far[row[far] < near_bound]
        far_scaled = _scaled(row, far, peak, temperature)
        alive = far_scaled >= -depth
        far = far[alive]
        far_scores = far_scaled[alive] + gumbel(key, far)
        return _winner(np.concatenate((ids, far)), np.concatenate((scores, far_scores)))


def _scaled(row: LogitRow, ids: IdArray, peak: float, temperature: float) -> NDArray[np.float64]:
    return (row[ids].astype(np.float64) - peak) / temperature


def _winner(ids: IdArray, scores: NDArray[np.float64]) -> int:
    """The id with the largest score; the lowest id among equals."""
    return int(ids[scores == scores.max()].min())
