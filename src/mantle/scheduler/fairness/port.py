"""Between tenants in a lane: what does every answer to "who is next" offer?"""

from typing import Protocol

from mantle.core.ids import TenantId


class Fairness(Protocol):
    """Shares the service of one lane on one model between its tenants: one instance for each.

    A tenant is *backlogged* while its queue there is not empty.
    """

    def backlogged(self, tenant_id: TenantId) -> None:
        """The tenant's queue has become non-empty."""
        ...

    def drained(self, tenant_id: TenantId) -> None:
        """The tenant's queue has become empty."""
        ...

    def pick(self) -> TenantId | None:
        """Whose request runs next; None when nobody waits."""
        ...

    def charge(self, tenant_id: TenantId, cost: float) -> None:
        """Service given (positive) or an estimate taken back (negative), in token cost."""
        ...
