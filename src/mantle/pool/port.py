"""What does the pool offer? The catalogue to read, and replicas to run attempts on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mantle.core.errors import LoadFailed
from mantle.core.ids import ModelId, ReplicaId
from mantle.engine.port import Command, LoadReport, StepReport


class ModelState(StrEnum):
    """Life of a catalogue entry; never silently removed."""

    ACTIVE = "active"
    LEGACY = "legacy"
    ARCHIVED = "archived"


class ResidencyState(StrEnum):
    """Where a model's weights are now."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model that can be served. `window_tokens` is the context the model was trained for.

    `digest` is sha256 of the weights file (hex). `parameters_count` and `quantization` are for
    people. `aliases` are further names that clients may use. `kv_bytes_per_token` (0: unknown)
    lets the pool judge the memory a replica will take before it was ever loaded.
    """

    id: ModelId
    driver: str
    path: str
    digest: str
    size_bytes: int
    window_tokens: int
    created_s: int
    display_name: str
    quantization: str = ""
    parameters_count: int = 0
    template_digest: str = ""
    kv_bytes_per_token: int = 0
    state: ModelState = ModelState.ACTIVE
    aliases: tuple[str, ...] = ()


class CataloguePort(Protocol):
    """The list of models; reading is free of I/O."""

    def entries(self) -> Sequence[CatalogueEntry]: ...

    def find(self, name: str) -> CatalogueEntry | None:
        """The entry with this id or alias."""
        ...


class PoolPort(Protocol):
    """What is loaded where (advisory reads)."""

    def residency(self, model_id: ModelId) -> ResidencyState: ...

    def window_tokens(self, model_id: ModelId) -> int:
        """Most tokens (prompt + output) that one sequence of this model may have."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """What waits for one model: token cost, and how long the oldest has waited."""

    cost: float
    oldest_wait_ms: float


class PoolListener(Protocol):
    """Who the pool tells what happened, on the event loop, in order."""

    def replica_ready(
        self, replica_id: ReplicaId, model_id: ModelId, report: LoadReport
    ) -> None: ...

    def replica_draining(self, replica_id: ReplicaId) -> None:
        """Send it no new work: its memory is wanted."""
        ...

    def replica_gone(self, replica_id: ReplicaId, reason: str) -> None:
        """Lost or unloaded. Everything resident there is the listener's to requeue or end."""
        ...

    def load_failed(self, model_id: ModelId, error: LoadFailed) -> None:
        """The model can not be loaded now; whoever waits for it should hear the reason."""
        ...

    def stepped(self, replica_id: ReplicaId, report: StepReport) -> None: ...

    def parked(self, replica_id: ReplicaId, sequence_id: int) -> None:
        """The sequence has left its slot; its last outputs came before this."""
        ...


class ReplicaPool(Protocol):
    """The pool, as the dispatcher uses it."""

    def set_listener(self, listener: PoolListener) -> None: ...

    def send(self, replica_id: ReplicaId, commands: Sequence[Command]) -> None:
        """Pass commands on in order; dropped when the replica is gone (the listener is told)."""
        ...

    def rebalance(self, demand: Mapping[ModelId, Demand], running: Mapping[ReplicaId, int]) -> None:
        """Load and drop models for what waits and runs now."""
        ...
