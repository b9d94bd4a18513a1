"""May this record still be written? Older epochs and ended requests write nothing (law 6).

Invariant: asked for every record in order of appending; holds one epoch a live request.
"""

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import RequestId
from mantle.journal.record import Accepted, Asked, Dispatched, Finished, Record, Trimmed


class Fence:
    """The newest epoch of every live request."""

    def __init__(self) -> None:
        self._epochs: dict[RequestId, Epoch] = {}

    def __len__(self) -> int:
        return len(self._epochs)

    def know(self, request_id: RequestId, epoch: Epoch) -> None:
        """A request of an earlier server goes on."""
        self._epochs[request_id] = epoch

    def admit(self, record: Record) -> None:
        """Raises `JournalFault` for what must not be written."""
        if isinstance(record, Asked | Trimmed):
            return
        if isinstance(record, Accepted):
            self._epochs[record.request.id] = FIRST_EPOCH
            return
        current = self._epochs.get(record.request_id)
        if current is None:
            raise JournalFault("a record came for a request that is not live")
        if isinstance(record, Finished):
            del self._epochs[record.request_id]
            return
        if record.epoch < current:
            raise JournalFault("a record came from an older epoch")
        if isinstance(record, Dispatched):
            self._epochs[record.request_id] = record.epoch
