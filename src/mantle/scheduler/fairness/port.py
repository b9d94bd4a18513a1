"""Between tenants in a lane: what does every answer to "who is next" offer?"""

from collections.abc import Callable
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

    def produced(self, tenant_id: TenantId, cost: float) -> None:
        """So much of what was charged has now really been given."""
        ...

    def forget_idle(self, is_busy: Callable[[TenantId], bool]) -> None:
        """Drop what is known of tenants when that changes nothing; O(1) amortised.

        `is_busy`: the tenant may still be charged without being backlogged first.
        """
        ...

    def counter(self, tenant_id: TenantId) -> float:
        """What the tenant was given for its weight, on a scale that is only good to compare."""
        ...
