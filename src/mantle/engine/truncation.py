"""Which ids may be chosen at all? top_k first, then top_p over what it left.

Invariant: exact. Ids are ordered by (−logit, id); top_k keeps exactly k of them; top_p keeps the
fewest whose probabilities (at the given temperature) reach it, never none. The float32 sums that
make this fast are redone in float64 where they could decide differently.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mantle.core.sampling import SamplingParams
from mantle.engine.logprobs import IdArray, LogitRow, likeliest

_SUM_SLACK: Final = 1e-5
"""Relative error of a float32 sum of exponentials. Beyond: the nucleus may miss one id."""


def kept_ids(row: LogitRow, peak: float, temperature: float, params: SamplingParams) -> IdArray:
    """What top_k and then top_p leave, likeliest first."""
    if params.top_k == 0:
        return _nucleus(row, peak, temperature, params.top_p)
    ids = likeliest(row, min(params.top_k, len(row)), peak)
    if params.top_p >= 1.0:
        return ids
    masses = _masses(row, ids, peak, temperature)
    return ids[: _reaching_count(np.cumsum(masses), params.top_p * float(masses.sum()))]


class NucleusTest:
    """Is one id in the nucleus of `top_p`? Cheaper than finding all of it, which needs a sort."""

    def __init__(
        self, row: LogitRow, peak: float, temperature: float, top_p: float, scratch: LogitRow
    ) -> None:
        np.subtract(row, np.float32(peak), out=scratch)
        np.multiply(scratch, np.float32(1.0 / temperature), out=scratch)
        np.exp(scratch, out=scratch)
        self._row, self._masses = row, scratch
        total = float(scratch.sum())
        self._goal, self._slack = top_p * total, _SUM_SLACK * total

    def is_within(self, ids: IdArray) -> bool:
        """True when `ids`, all above some bound, surely hold the whole nucleus."""
        return float(self._masses[ids].sum()) > self._goal + self._slack

    def surely_has(self, token_id: int) -> bool:
        """True when the ids before it do not reach `top_p`; False also when it is too close."""
        value = self._row[token_id]
        before = float(self._masses[np.flatnonzero(self._row > value)].sum())
        equals_before = int(np.count_nonzero(self._row[:token_id] == value))
        before += equals_before * float(self._masses[token_id])
        return before < self._goal - self._slack


def _nucleus(row: LogitRow, peak: float, temperature: float, top_p: float) -> IdArray:
    total = float(np.exp((row.astype(np.float64) - peak) / temperature).sum())
    for depth in (3.0, 6.0, 12.0, math.inf):
        bound = np.float32(peak - depth * temperature)
        ids = np.flatnonzero(row >= bound)
        ids = ids[np.argsort(-row[ids], kind="stable")]
        reached = np.cumsum(_masses(row, ids, peak, temperature))
        if reached[-1] >= top_p * total:
            break
    return ids[: _reaching_count(reached, top_p * total)]


def _reaching_count(reached: NDArray[np.float64], goal: float) -> int:
    """How many leading entries it takes to reach `goal`; all of them when rounding forbids it."""
    return min(int(np.searchsorted(reached, goal)) + 1, len(reached))


def _masses(row: LogitRow, ids: IdArray, peak: float, temperature: float) -> NDArray[np.float64]:
    masses: NDArray[np.float64] = np.exp((row[ids].astype(np.float64) - peak) / temperature)
    return masses


def depth_of_min_p(min_p: float) -> float:
    """How far below the peak a scaled logit may lie under `min_p`."""
    return -math.log(min_p) if min_p > 0.0 else math.inf
