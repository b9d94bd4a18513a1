"""What does the journal promise? What was committed survives; an older epoch writes nothing.

Invariant: the callback of `append` runs, on the event loop and in order of appending, only when
the records are as durable as the store's policy says. No token is shown before that (law 4).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mantle.core.epoch import Epoch
from mantle.core.ids import RequestId, TenantId
from mantle.journal.history import AskHistory, RequestHistory
from mantle.journal.record import (
    Accepted,
    Asked,
    Choice,
    Dispatched,
    Finished,
    Parked,
    Pins,
    Record,
    Tokens,
    Trimmed,
)
from mantle.journal.retention import redacted

__all__ = [
    "Accepted",
    "AskHistory",
    "Asked",
    "Choice",
    "Damage",
    "Dispatched",
    "Finished",
    "Journal",
    "Parked",
    "Pins",
    "Record",
    "Recovered",
    "RequestHistory",
    "Tokens",
    "Trimmed",
    "redacted",
]


@dataclass(frozen=True, slots=True)
class Damage:
    """A request (or ask) whose records cannot be believed, and why. Never holds content."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a server finds when it starts.

    `asks` have at least one request that is not over; `orphans` (with their epochs) were accepted,
    but their ask was not durable when the server died, so nobody was told of them; `damaged` are
    set aside: their records stay for `mantle journal show`, and nothing runs them.
    """

    asks: tuple[AskHistory, ...] = ()
    orphans: tuple[tuple[RequestId, Epoch], ...] = ()
    damaged: tuple[Damage, ...] = ()


class Journal(Protocol):
    """The one place of truth for requests' progress. All methods run on the event loop."""

    @property
    def trouble(self) -> str:
        """Why nothing can be written just now ("" when it can), fit for clients: then new
        requests are refused, and running ones pause until it is over.
        """
        ...

    @property
    def has_failed(self) -> bool:
        """Nothing is written or acknowledged any more; the server must stop."""
        ...

    def append(self, records: Sequence[Record], committed: Callable[[], None]) -> None:
        """Queue records for the next commit: all of them in one transaction or none.

        `committed` is called once they are durable. Raises `JournalFault` for records that break
        the rules (older epoch, after the end), and once the journal has failed.
        """
        ...

    async def recover(self) -> Recovered:
        """What the last server left unfinished; call it once, before the first `append`."""
        ...

    async def history(self, ask_id: str) -> AskHistory | None:
        """An ask, running or finished, while it is kept. None: not known (any more)."""
        ...

    async def find_key(self, tenant_id: TenantId, key_digest: str) -> str | None:
        """The ask that was made under this idempotency key, while it is kept."""
        ...

    async def close(self) -> None:
        """Commit what is queued, then stop."""
        ...
