"""Who pays? A tenant, and the API keys that speak for it."""

from dataclasses import dataclass

from mantle.core.ids import ModelId, ProjectId, TenantId
from mantle.core.lane import Lane


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer. `weight` is its share against others in a lane.

    `models` None means every model in the catalogue; `lanes` are those it may ask for.
    """

    id: TenantId
    weight: float = 1.0
    models: frozenset[ModelId] | None = None
    lanes: frozenset[Lane] = frozenset({Lane.PRIORITY, Lane.STANDARD, Lane.FLEX})

    def may_use(self, model_id: ModelId) -> bool:
        return self.models is None or model_id in self.models


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a verified API key speaks for; never taken from a header that a client can forge."""

    tenant: Tenant
    project_id: ProjectId
