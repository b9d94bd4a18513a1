"""What does the journal promise? What was committed survives; an older epoch writes nothing.

Invariant: the callback of `append` runs, on the event loop and in order of appending, only when
the records are as durable as the store's policy says. No token is shown before that (law 4).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from mantle.journal.record import Accepted, Dispatched, Finished, Parked, Record, Tokens

__all__ = ["Accepted", "Dispatched", "Finished", "Journal", "Parked", "Record", "Tokens"]


class Journal(Protocol):
    """The one place of truth for requests' progress."""

    def append(self, records: Sequence[Record], committed: Callable[[], None]) -> None:
        """Queue records for the next commit; `committed` is called once they are durable."""
        ...

    async def close(self) -> None: ...
