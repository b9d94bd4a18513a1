"""What must a place that keeps the journal offer? Synchronous: the writer thread calls it.

Invariant: `commit` is all or nothing, and once it returned, the records survive the loss of power.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mantle.core.errors import JournalFault
from mantle.core.ids import TenantId
from mantle.journal.history import AskHistory
from mantle.journal.port import Damage, Recovered
from mantle.journal.record import Record


class Opening(StrEnum):
    """What for? `OWNING` fences every earlier owner; `BESIDE` one, only `compact` is allowed."""

    OWNING = "owning"
    BESIDE = "beside"
    READING = "reading"


class StoreWaits(JournalFault):
    """Not now: the same commit may be tried again, and it will not be written twice."""


class StoreFull(StoreWaits):
    """There is no room; nothing was written."""


class StoreAway(StoreWaits):
    """The store cannot be reached. A commit that landed unseen is recognised at the next try."""


class StoreFenced(JournalFault):
    """Another server has opened this journal since: this one must write nothing more."""


class StoreBroken(JournalFault):
    """Whether the commit is durable is unknown (a failed fsync): stop, never try again."""


@dataclass(frozen=True, slots=True)
class AskSummary:
    """One line of `mantle journal ls`; no content. Times are Unix seconds."""

    id: str
    tenant_id: TenantId
    route: str
    created_s: int
    finished_s: int | None
    requests: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """What `compact` removed."""

    asks: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class UsageLine:
    """What one tenant used of one model in one hour, by lane and outcome: each token once.

    `hour_s`: the hour's begin in Unix seconds; a request counts in the hour of its end.
    """

    hour_s: int
    tenant_id: TenantId
    model_id: str
    lane: str
    outcome: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class JournalStore(Protocol):
    """One journal, opened for writing (it fences all earlier openers) or for reading."""

    def commit(self, records: Sequence[Record]) -> None:
        """Raises `StoreWaits` (then the next commit is the same again), `StoreFenced` or
        `StoreBroken`.
        """
        ...

    def recover(self) -> Recovered:
        """All that is not over."""
        ...

    def history(self, ask_id: str) -> AskHistory | None:
        """Raises `JournalFault` when its records cannot be believed."""
        ...

    def find_key(self, tenant_id: TenantId, key_digest: str) -> str | None:
        """The newest ask under an idempotency key."""
        ...

    def summaries(self) -> Iterator[AskSummary]:
        """Newest first."""
        ...

    def usage(self, since_s: int = 0) -> Iterator[UsageLine]:
        """What ended since then, by hour; it outlives the requests' content."""
        ...

    def verify(self) -> list[Damage]:
        """Read everything; what cannot be believed."""
        ...

    def forget(self, finished_before_s: int) -> int:
        """Drop asks that were over before then, with all content; how many."""
        ...

    def compact(self, finished_before_s: int) -> Compacted:
        """`forget`, and give the room back to the file system."""
        ...

    def close(self) -> None: ...
