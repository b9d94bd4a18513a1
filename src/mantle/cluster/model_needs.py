"""What does loading a model need, and with which settings? Slots are cut to what memory allows.

Invariant: what placement is told a replica will take is what its settings will make it take.
"""

import logging
from dataclasses import dataclass, field

import msgspec

from mantle.cluster.config_model import Config
from mantle.core.ids import ModelId
from mantle.engine.port import EngineSettings, LoadSpec
from mantle.pool.port import CatalogueEntry, CataloguePort

log = logging.getLogger("mantle.cluster")

KV_GUESS_SHARE = 0.5
"""KV memory guessed for a model that does not say, as a share of its weights."""


@dataclass(slots=True)
class ModelNeeds:
    """What loading a model needs, and how; remembers models that left the catalogue meanwhile."""

    config: Config
    catalogue: CataloguePort
    budget_bytes: int
    _seen: dict[ModelId, CatalogueEntry] = field(default_factory=dict)
    _told: set[ModelId] = field(default_factory=set)

    def entry(self, model_id: ModelId) -> CatalogueEntry:
        entry = self.catalogue.find(model_id)
        if entry is not None:
            self._seen[model_id] = entry
        return self._seen[model_id]

    def window_tokens(self, model_id: ModelId) -> int:
        wanted = self.config.engine_for(model_id).window_tokens
        trained = self.entry(model_id).window_tokens
        return min(wanted, trained) if wanted else trained

    def engine(self, model_id: ModelId) -> EngineSettings:
        """The model's settings, with as many slots as the memory budget has KV for (at least 1)."""
        settings, entry = self.config.engine_for(model_id), self.entry(model_id)
        slot_bytes = entry.kv_bytes_per_token * self.window_tokens(model_id)
        if not slot_bytes:
            return settings
        fitting = max(1, (self.budget_bytes - entry.size_bytes) // slot_bytes)
        if fitting >= settings.slots:
            return settings
        if model_id not in self._told:
            self._told.add(model_id)
            log.warning(
                "model %s gets %d slots instead of %d: more KV does not fit the memory budget; "
                "lower engine.window_tokens or raise pool.memory_mib",
                model_id,
                fitting,
                settings.slots,
            )
        return msgspec.structs.replace(settings, slots=fitting)

    def need_bytes(self, model_id: ModelId) -> int:
        entry = self.entry(model_id)
        kv_tokens = self.engine(model_id).slots * self.window_tokens(model_id)
        kv_bytes = entry.kv_bytes_per_token * kv_tokens or int(KV_GUESS_SHARE * entry.size_bytes)
        return entry.size_bytes + kv_bytes

    def load_spec(self, model_id: ModelId) -> LoadSpec:
        entry = self.entry(model_id)
        return LoadSpec(entry.id, entry.driver, entry.path, self.engine(model_id))
