"""Which noise decides a token? A pure function of (seed, output position, vocabulary id).

Two nested SplitMix64 streams (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014): the request's seed opens a stream whose element at the output position
is the key of a second stream, whose element at the vocabulary id is the hash. Invariant: no state;
any id's noise can be computed alone, so pruning and batching never change a token (design law 7).

The top 32 bits h of a hash give u = (h + ½)/2³², which is exact in a double and never 0 or 1, and
the Gumbel noise −ln(−ln u). So noise lies in [NOISE_MIN, NOISE_MAX], and an id whose scaled logit
is more than NOISE_RANGE below the largest can never win.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

UintArray = NDArray[np.uint64]
FloatArray = NDArray[np.float64]

_WORD: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_A: Final = 0xBF58476D1CE4E5B9
_MIX_B: Final = 0x94D049BB133111EB
_ROUNDS: Final = (
    (np.uint64(30), np.uint64(_MIX_A)),
    (np.uint64(27), np.uint64(_MIX_B)),
)

_BLOCK_IDS: Final = 8192
"""Ids hashed at once. Beyond: the block leaves the core's cache."""

_UNIT: Final = 2.0**-32
NOISE_MIN: Final = -math.log(-math.log(0.5 * _UNIT))
NOISE_MAX: Final = -math.log(-math.log1p(-0.5 * _UNIT))
NOISE_RANGE: Final = NOISE_MAX - NOISE_MIN


def noise_key(seed: int, position: int) -> int:
    """Key of the noise at one output position of a request."""
    stream = _mix((seed & _WORD) + _GAMMA)
    return _mix(stream + (position + 1) * _GAMMA)


def gumbel(key: int, ids: NDArray[np.int64]) -> FloatArray:
    """Gumbel noise of `ids` under `key`."""
    return gumbel_of(hash_bits(key, ids.astype(np.uint64)))


def gumbel_of(bits: UintArray) -> FloatArray:
    """Gumbel noise of 32-bit hashes."""
    uniform = (bits.astype(np.float64) + 0.5) * _UNIT
    noise: FloatArray = -np.log(-np.log(uniform))
    return noise


def hash_bits(key: int, ids: UintArray) -> UintArray:
    """The 32 hash bits of each id; `ids` is overwritten."""
    hashes = ids
    shifted = np.empty_like(hashes)
    hashes += np.uint64(1)
    hashes *= np.uint64(_GAMMA)
    hashes += np.uint64(key)
    for shift, factor in _ROUNDS:
        np.right_shift(hashes, shift, out=shifted)
        np.bitwise_xor(hashes, shifted, out=hashes)
        hashes *= factor
    np.right_shift(hashes, np.uint64(31), out=shifted)
    np.bitwise_xor(hashes, shifted, out=hashes)
    np.right_shift(hashes, np.uint64(32), out=hashes)
    return hashes


def bits_above(noise: float) -> int:
    """Smallest hash whose noise may exceed `noise` (two steps of slack for rounding)."""
    if noise <= NOISE_MIN:
        return 0
    return max(0, int(math.exp(-math.exp(-noise)) / _UNIT) - 2)


class NoiseField:
    """Finds the few ids of a whole vocabulary that have much noise, without any logarithm.

    Blocks fit the cache. The last step of SplitMix64 moves only the lowest of a hash's 32 bits,
    so it is left out here, and the bound is lowered by one instead.
    """

    def __init__(self, vocab_size: int) -> None:
        self._steps = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(_GAMMA)
        self._hashes = np.empty(_BLOCK_IDS, np.uint64)
        self._shifted = np.empty(_BLOCK_IDS, np.uint64)
        self._found = np.empty(vocab_size, np.bool_)

    def loud_ids(self, key: int, smallest_bits: int) -> NDArray[np.int64]:
        """All ids (ascending) whose hash is at least `smallest_bits`, and perhaps a few more."""
        bound = np.uint64(max(0, smallest_bits - 1) << 32)
        for start in range(0, len(self._steps), _BLOCK_IDS):
            steps = self._steps[start : start + _BLOCK_IDS]
            hashes, shifted = self._hashes[: len(steps)], self._shifted[: len(steps)]
            np.add(steps, np.uint64(key), out=hashes)
            for shift, factor in _ROUNDS:
                np.right_shift(hashes, shift, out=shifted)
                np.bitwise_xor(hashes, shifted, out=hashes)
                np.multiply(hashes, factor, out=hashes)
            np.greater_equal(hashes, bound, out=self._found[start : start + _BLOCK_IDS])
        return np.flatnonzero(self._found)


def _mix(word: int) -> int:
    word &= _WORD
    word = ((word ^ (word >> 30)) * _MIX_A) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_B) & _WORD
    return word ^ (word >> 31)
