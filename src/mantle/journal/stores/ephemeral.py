"""A journal that keeps nothing: every request lives as long as the server does.

It acknowledges at once, so the road of a request is the same as with a durable store, and it
refuses what a durable store would refuse: records of an older epoch and of ended requests.
"""

from collections.abc import Callable, Sequence

from mantle.core.ids import TenantId
from mantle.journal.fence import Fence
from mantle.journal.history import AskHistory
from mantle.journal.port import Recovered
from mantle.journal.record import Record


class EphemeralJournal:
    """Implements `Journal` in memory."""

    def __init__(self) -> None:
        self._fence = Fence()

    @property
    def trouble(self) -> str:
        return ""

    @property
    def has_failed(self) -> bool:
        return False

    def append(self, records: Sequence[Record], committed: Callable[[], None]) -> None:
        for record in records:
            self._fence.admit(record)
        committed()

    async def recover(self) -> Recovered:
        """Nothing: it has not been here before."""
        return Recovered()

    async def history(self, ask_id: str) -> AskHistory | None:
        return None

    async def find_key(self, tenant_id: TenantId, key_digest: str) -> str | None:
        return None

    async def close(self) -> None:
        self._fence = Fence()

    def live_count(self) -> int:
        """Requests accepted and not finished."""
        return len(self._fence)
