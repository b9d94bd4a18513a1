"""Who got how much, when? Served cost of each tenant and each lane, in slices of time."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timeline:
    """Slices of `slice_ms`; the names are tenants, or lanes."""

    slice_ms: float = 1_000.0
    _cost: dict[str, defaultdict[int, float]] = field(default_factory=dict)

    def served(self, name: str, cost: float, now_ms: float) -> None:
        slices = self._cost.setdefault(name, defaultdict(float))
        slices[int(now_ms // self.slice_ms)] += cost

    def cumulative(self, name: str, slices: int) -> list[float]:
        """Everything that was served up to the end of each slice."""
        mine: Mapping[int, float] = self._cost.get(name, {})
        total, sums = 0.0, []
        for index in range(slices):
            total += mine.get(index, 0.0)
            sums.append(total)
        return sums
