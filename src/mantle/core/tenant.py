"""Who pays? A tenant, what it bought, and the API keys that speak for it."""

from dataclasses import dataclass
from typing import Final

from mantle.core.ids import ModelId, ProjectId, TenantId
from mantle.core.lane import Lane

ANY_MODEL: Final = ModelId("*")
"""In a quota: each model that has no quota of its own, every model counted by itself."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Most that a tenant may use of one model (`ANY_MODEL`: of each other one); None: unlimited.

    Cached input is free. `concurrent_max` counts requests from acceptance to their end; one with
    n choices counts n times.
    """

    model_id: ModelId
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    concurrent_max: int | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Capacity that a tenant bought of one model: what it may use in the Reserved lane."""

    model_id: ModelId
    input_tokens_per_min: int
    output_tokens_per_min: int


@dataclass(frozen=True, slots=True)
class QueueBound:
    """Most that a tenant may have waiting in a lane; None: as every tenant (the lane's own)."""

    lane: Lane
    requests_max: int | None = None
    tokens_max: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer. `weight` is its share against others in a lane.

    `models` None means every model in the catalogue; `lanes` are those it may ask for.
    """

    id: TenantId
    weight: float = 1.0
    models: frozenset[ModelId] | None = None
    lanes: frozenset[Lane] = frozenset({Lane.PRIORITY, Lane.STANDARD, Lane.FLEX})
    quotas: tuple[Quota, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    queues: tuple[QueueBound, ...] = ()

    def may_use(self, model_id: ModelId) -> bool:
        return self.models is None or model_id in self.models

    def quota(self, model_id: ModelId) -> Quota | None:
        """The quota that holds for a model: its own, else the one for any; None: unlimited."""
        found: Quota | None = None
        for quota in self.quotas:
            if quota.model_id == model_id:
                return quota
            if quota.model_id == ANY_MODEL:
                found = quota
        return found

    def reservation(self, model_id: ModelId) -> Reservation | None:
        """What it bought of a model; None: nothing."""
        return next((r for r in self.reservations if r.model_id == model_id), None)

    def queue_bound(self, lane: Lane) -> QueueBound | None:
        """Its own bound in a lane; None: as every tenant."""
        return next((bound for bound in self.queues if bound.lane is lane), None)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a verified API key speaks for; never taken from a header that a client can forge."""

    tenant: Tenant
    project_id: ProjectId
