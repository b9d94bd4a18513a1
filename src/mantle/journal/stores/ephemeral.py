"""A journal that keeps nothing: every request lives as long as the server does.

It acknowledges at once, so the road of a request is the same as with a durable store, and it
refuses what a durable store would refuse: records of an older epoch and of ended requests.
"""

from collections.abc import Callable, Sequence

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import RequestId, TenantId
from mantle.journal.history import AskHistory
from mantle.journal.port import Recovered
from mantle.journal.record import (
    Accepted,
    Asked,
    Dispatched,
    Finished,
    Parked,
    Record,
    Tokens,
    Trimmed,
)


class EphemeralJournal:
    """Implements `Journal` in memory; holds one epoch a live request."""

    def __init__(self) -> None:
        self._epochs: dict[RequestId, Epoch] = {}

    def append(self, records: Sequence[Record], committed: Callable[[], None]) -> None:
        for record in records:
            self._admit(record)
        committed()

    @property
    def trouble(self) -> str:
        return ""

    async def recover(self) -> Recovered:
        """Nothing: it has not been here before."""
        return Recovered()

    async def history(self, ask_id: str) -> AskHistory | None:
        return None

    async def find_key(self, tenant_id: TenantId, key_digest: str) -> str | None:
        return None

    async def close(self) -> None:
        self._epochs.clear()

    def live_count(self) -> int:
        """Requests accepted and not finished."""
        return len(self._epochs)

    def _admit(self, record: Record) -> None:
        if isinstance(record, Asked | Trimmed):
            return
        if isinstance(record, Accepted):
            self._epochs[record.request.id] = FIRST_EPOCH
            return
        current = self._epochs.get(record.request_id)
        if current is None:
            raise JournalFault("a record came for a request that is not live")
        if isinstance(record, Dispatched | Tokens | Parked) and record.epoch < current:
            raise JournalFault("a record came from an older epoch")
        if isinstance(record, Dispatched):
            self._epochs[record.request_id] = record.epoch
        elif isinstance(record, Finished):
            del self._epochs[record.request_id]
