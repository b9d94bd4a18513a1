"""The noise is SplitMix64's own stream, bounded, and the bound for skipping hashes is exact."""

import math

import numpy as np
import pytest

from mantle.engine.noise import (
    NOISE_MAX,
    NOISE_MIN,
    bits_above,
    gumbel,
    gumbel_of,
    hash_bits,
    noise_key,
)

# First outputs of SplitMix64 seeded with 1234567, as published with other implementations.
_PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_hashes_are_the_published_splitmix64_stream() -> None:
    bits = hash_bits(1234567, np.arange(5, dtype=np.uint64))
    assert bits.tolist() == [word >> 32 for word in _PUBLISHED]


def test_keys_differ_by_seed_and_by_position() -> None:
    keys = {noise_key(seed, position) for seed in range(50) for position in range(50)}
    assert len(keys) == 2_500


def test_seeds_count_modulo_two_to_the_64() -> None:
    assert noise_key(-1, 3) == noise_key(2**64 - 1, 3)


def test_noise_of_an_id_does_not_depend_on_the_others_asked() -> None:
    everything = gumbel(77, np.arange(1_000))
    some = np.array([999, 3, 500])
    assert np.array_equal(gumbel(77, some), everything[some])


def test_extreme_hashes_give_finite_noise_at_the_bounds() -> None:
    noise = gumbel_of(np.array([0, 2**32 - 1], np.uint64))
    assert noise[0] == pytest.approx(NOISE_MIN)
    assert noise[1] == pytest.approx(NOISE_MAX)
    assert np.isfinite(noise).all()


def test_mean_and_variance_are_gumbels() -> None:
    noise = gumbel(5, np.arange(200_000))
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.02)


@pytest.mark.parametrize("bound", [-5.0, NOISE_MIN, -1.0, 0.0, 3.0, 12.0, 22.0, NOISE_MAX, 40.0])
def test_no_hash_below_the_bound_has_noise_above_it(bound: float) -> None:
    smallest = bits_above(bound)
    if smallest > 0:
        below = np.array([min(smallest, 2**32) - 1], np.uint64)
        assert gumbel_of(below)[0] <= bound
