"""What is one loaded copy of a model? Its place, its size, and where in its life it is."""

from dataclasses import dataclass
from enum import StrEnum

from mantle.core.ids import ModelId, ReplicaId, WorkerId


class ReplicaState(StrEnum):
    """loading → ready → draining → unloading; a failed or lost replica is simply forgotten."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNLOADING = "unloading"


@dataclass(slots=True)
class Replica:
    """One copy on one worker. `size_bytes` is what the ledger holds for it (weights and KV)."""

    id: ReplicaId
    model_id: ModelId
    worker_id: WorkerId
    size_bytes: int
    since_ms: float
    last_used_ms: float
    state: ReplicaState = ReplicaState.LOADING

    @property
    def is_leaving(self) -> bool:
        return self.state in (ReplicaState.DRAINING, ReplicaState.UNLOADING)

    def may_leave(self, now_ms: float, residency_ms_min: float) -> bool:
        """Ready, and here long enough that the load was not for nothing."""
        return self.state is ReplicaState.READY and now_ms - self.since_ms >= residency_ms_min
