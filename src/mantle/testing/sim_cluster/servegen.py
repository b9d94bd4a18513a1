"""How do ServeGen's clients arrive? Drawn from what it publishes: rates, burstiness, lengths.

ServeGen (Alibaba) publishes no requests but, for each client and 10-minute window, the rate and the
coefficient of variation of the gaps, and quantiles of the lengths. Gaps are drawn from a Gamma
distribution of that mean and variation (its own fits are Gamma or Weibull with the same two
moments), lengths by interpolating the quantiles. A client without lengths gets
those of the client nearest in rate. Invariant: the same seed draws the same arrivals.
"""

import bisect
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mantle.testing.sim_cluster.arrival import Arrival

WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class RateRow:
    """One client in one window."""

    at_s: float
    client: str
    rate_rps: float
    variation: float


class ClientLengths(msgspec.Struct):
    """Quantiles of token counts, 0 to 100 % in equal steps, by the window's start in seconds."""

    input_tokens: dict[str, list[float]] = {}
    output_tokens: dict[str, list[float]] = {}


class Lengths(msgspec.Struct):
    """The lengths file; what else it says is not needed here."""

    clients: dict[str, ClientLengths]


def drawn_arrivals(
    rates: Sequence[RateRow], lengths: Lengths, *, seed: int, seconds: float | None
) -> list[Arrival]:
    """Arrivals from the busiest window on, for so many seconds (default: one window)."""
    rate_at: defaultdict[float, float] = defaultdict(float)
    for row in rates:
        rate_at[row.at_s] += row.rate_rps
    if not rate_at:
        return []
    start_s = max(rate_at, key=lambda at_s: rate_at[at_s])
    end_s = start_s + (WINDOW_S if seconds is None else seconds)
    lengths_of = _lengths_of(rates, lengths)
    arrivals: list[Arrival] = []
    for row in rates:
        if start_s <= row.at_s < end_s and row.rate_rps > 0 and row.client in lengths_of:
            rng = random.Random(f"{seed} {row.client} {row.at_s}")
            until_s = min(end_s, row.at_s + WINDOW_S)
            mine = lengths_of[row.client]
            for at_s in _times(rng, row, until_s):
                input_tokens = _drawn(rng, mine.input_tokens, at_s)
                output_tokens = _drawn(rng, mine.output_tokens, at_s)
                arrivals.append(
                    Arrival((at_s - start_s) * 1e3, row.client, input_tokens, output_tokens)
                )
    return sorted(arrivals, key=lambda arrival: arrival.at_ms)


def _times(rng: random.Random, row: RateRow, until_s: float) -> list[float]:
    """A renewal process with Gamma gaps; it begins somewhere within its first gap."""
    shape = 1.0 / max(row.variation, 0.05) ** 2
    scale_s = 1.0 / (row.rate_rps * shape)
    at_s = row.at_s + rng.random() * rng.gammavariate(shape, scale_s)
    times: list[float] = []
    while at_s < until_s:
        times.append(at_s)
        at_s += rng.gammavariate(shape, scale_s)
    return times


def _drawn(rng: random.Random, windows: dict[str, list[float]], at_s: float) -> int:
    """A length from the quantiles of the last window that had begun (the first, if none had)."""
    starts = sorted(windows, key=float)
    index = bisect.bisect_right([float(start) for start in starts], at_s) - 1
    quantiles = windows[starts[max(0, index)]]
    position = rng.random() * (len(quantiles) - 1)
    low = int(position)
    high = min(low + 1, len(quantiles) - 1)
    value = quantiles[low] + (quantiles[high] - quantiles[low]) * (position - low)
    return max(1, round(value))


def _lengths_of(rates: Sequence[RateRow], lengths: Lengths) -> dict[str, ClientLengths]:
    """Each client's lengths; where they are missing, those of the client nearest in mean rate."""
    rate_of: defaultdict[str, float] = defaultdict(float)
    for row in rates:
        rate_of[row.client] += row.rate_rps
    known = {
        f"c{name}": found
        for name, found in lengths.clients.items()
        if found.input_tokens and found.output_tokens
    }
    found = dict(known)
    for client, rate in rate_of.items():
        if client not in found and known:
            nearest = min(known, key=lambda name: (abs(rate_of.get(name, 0.0) - rate), name))
            found[client] = known[nearest]
    return found
