"""Between tenants in a lane: what does every answer to "who is next" offer?"""

from typing import Protocol

from mantle.core.ids import ModelId, TenantId


class Fairness(Protocol):
    """Shares one lane's service between its tenants. One instance a lane.

    A tenant is *backlogged* for a model while its queue for that model is not empty.
    """

    def backlogged(self, tenant_id: TenantId, model_id: ModelId) -> None:
        """The tenant's queue for the model has become non-empty."""
        ...

    def drained(self, tenant_id: TenantId, model_id: ModelId) -> None:
        """The tenant's queue for the model has become empty."""
        ...

    def pick(self, model_id: ModelId) -> TenantId | None:
        """Whose request runs next on a replica of this model; None when nobody waits."""
        ...

    def charge(self, tenant_id: TenantId, cost: float) -> None:
        """Service given (positive) or an estimate taken back (negative), in token cost."""
        ...
