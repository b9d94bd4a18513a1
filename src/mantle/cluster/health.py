"""Is the platform alive, and can it serve now?

Invariant: alive means that at least one worker answers; ready means, besides, that every model
that should be loaded at start has been (or has failed for good, which its own requests report),
and that the journal can be written.
"""

from collections.abc import Callable, Sequence

from mantle.core.ids import ModelId
from mantle.pool.port import PoolPort, ResidencyState


class PlatformHealth:
    """Implements the gateway's `Health` by asking the pool."""

    def __init__(
        self,
        *,
        workers_alive: Callable[[], int],
        pool: PoolPort,
        preload: Sequence[ModelId],
        trouble: Callable[[], str] = str,
    ) -> None:
        self._workers_alive = workers_alive
        self._pool = pool
        self._preload = preload
        self._trouble = trouble
        self.stopping = False

    def is_alive(self) -> bool:
        return self._workers_alive() > 0

    def is_ready(self) -> bool:
        return self.is_alive() and not (self.stopping or self._trouble() or self._awaited())

    def reason(self) -> str:
        """One phrase for people and probes; safe to show to anybody."""
        if self.stopping:
            return "shutting down"
        if self._trouble():
            return self._trouble()
        if not self.is_alive():
            return "no worker is up; it is being started"
        awaited = self._awaited()
        return f"loading {', '.join(awaited)}" if awaited else "ready"

    def _awaited(self) -> list[ModelId]:
        unsettled = (ResidencyState.UNLOADED, ResidencyState.LOADING)
        return [m for m in self._preload if self._pool.residency(m) in unsettled]
