"""Is the KV of a parked sequence worth keeping? Kept in the worker's memory when that is cheaper.

Cheaper is decided from measured costs: copying a token's KV out and in, against computing it
again. Invariant: the store never holds more than its bound; the oldest copy goes first. Losing a
copy costs time, never correctness: the sequence is then prefilled again.
"""

from collections import OrderedDict
from dataclasses import dataclass

from mantle.engine.port import ParkedSequence

SMOOTHING = 0.3


@dataclass(slots=True)
class ParkingCosts:
    """Measured milliseconds a token; None until the first measurement."""

    prefill_ms: float | None = None
    copy_ms: float | None = None

    def learn_prefill(self, tokens: int, took_ms: float) -> None:
        self.prefill_ms = _mean(self.prefill_ms, took_ms / tokens)

    def learn_copy(self, tokens: int, took_ms: float) -> None:
        self.copy_ms = _mean(self.copy_ms, took_ms / tokens)

    def keeping_is_cheaper(self) -> bool:
        """Out and in again against one more prefill; kept while nothing is known."""
        if self.prefill_ms is None or self.copy_ms is None:
            return True
        return 2 * self.copy_ms < self.prefill_ms


class ParkedStore:
    """KV copies by the id that the sequence had when it was parked."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parked: OrderedDict[int, ParkedSequence] = OrderedDict()
        self.held_bytes = 0

    def keep(self, parked: ParkedSequence) -> int:
        """Keep a copy; returns how many bytes are held for it (0: it was not kept)."""
        size_bytes = 0 if parked.kv is None else len(parked.kv)
        if size_bytes == 0 or size_bytes > self._bytes_max:
            return 0
        self._parked[parked.sequence_id] = parked
        self.held_bytes += size_bytes
        while self.held_bytes > self._bytes_max:
            self.forget(next(iter(self._parked)))
        return size_bytes

    def take(self, parked_id: int) -> ParkedSequence | None:
        """Take a copy out; None when it was never kept, or had to go."""
        parked = self._parked.pop(parked_id, None)
        if parked is not None and parked.kv is not None:
            self.held_bytes -= len(parked.kv)
        return parked

    def forget(self, parked_id: int) -> None:
        """The sequence will not be resumed."""
        self.take(parked_id)


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + SMOOTHING * (value - mean)
