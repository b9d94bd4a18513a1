"""What does the pool know of models? Catalogue entries, as the stages to the left may read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mantle.core.ids import ModelId


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
    people. `aliases` are further names that clients may use.
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
