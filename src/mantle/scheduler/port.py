"""What may the stages to the left ask of the scheduler? Submit, read the tokens, cancel, look."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from mantle.core.ids import ModelId, ReplicaId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason
from mantle.core.request import Request
from mantle.core.tokens import TokenIds, TokenLogprob, Usage
from mantle.journal.port import RequestHistory


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """New output tokens, in order. `logprobs` has one entry a token when they were asked for."""

    first_index: int
    token_ids: TokenIds
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None


def written_chunk(history: RequestHistory) -> TokenChunk:
    """All durable tokens of a request, as its reader gets them."""
    is_scored = history.request.sampling.logprobs_count is not None
    scores = tuple(history.scores) if is_scored else None
    return TokenChunk(0, tuple(history.output), scores, history.prompt_scores)


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time went, in milliseconds from acceptance on the injected clock."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A generation's last word. `finish` is the engine's view: stop strings are the gateway's."""

    finish: FinishReason
    usage: Usage
    phases: Phases
    served_lane: Lane


@dataclass(frozen=True, slots=True)
class QueueView:
    """Where a waiting request stands (advisory): requests before it in its own queue.

    `estimated_wait_ms` is what it will still wait; None while no pace was measured.
    """

    position: int
    waited_ms: float
    estimated_wait_ms: float | None = None


class Generation(Protocol):
    """One accepted request, as its reader sees it. One owner; others may read along.

    Iterating yields `TokenChunk`s and stops after the last one; `ended` is set from then on.
    Raises (once, from the iteration) `Dropped`, `AttemptFailed` or `JournalFault`: then the
    request is over and nobody needs to finish it. The reader must either read to the end or call
    `cancel` (idempotent, never raises, frees the slot within two engine steps);
    `stop_at(output_tokens)` is a cancel that counts as completed with a stop string after that
    many output tokens. `resumed_inexactly`: it went on after a cut on an engine that cannot
    promise the tokens of an undisturbed run (design §8, E2).
    """

    request: Request

    @property
    def ended(self) -> Ended | None: ...

    @property
    def resumed_inexactly(self) -> bool: ...

    def __aiter__(self) -> AsyncIterator[TokenChunk]: ...

    def replay(self) -> AsyncIterator[TokenChunk]:
        """Another pass, from the first token on, that goes on with what is still to come."""
        ...

    def queue_view(self) -> QueueView | None: ...

    def usage_so_far(self) -> Usage: ...

    def phases_so_far(self) -> Phases: ...

    def cancel(self) -> None: ...

    def stop_at(self, output_tokens: int) -> None: ...


class SchedulerPort(Protocol):
    """The dispatcher, as admission sees it."""

    def submit(self, requests: list[Request]) -> list[Generation]:
        """Queue all branches of one ask, or none.

        Returns: the dispatcher owns them and ends each once. Raises `QueueFull` or `Unavailable`:
        the caller still owns them, nothing was stored.
        """
        ...

    def queued_count(self, request_id: RequestId) -> int: ...


# --- for operators ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Waits:
    """From acceptance to the first dispatch, of those that were dispatched; quantiles to 5 %."""

    count: int
    ms_mean: float
    ms_p50: float
    ms_p99: float


@dataclass(frozen=True, slots=True)
class TenantShare:
    """What a tenant got in a lane, in the report's window; `running` and `queued` are of now.

    `served_cost` is token cost that was produced. `*` stands for tenants not told apart.
    """

    tenant_id: TenantId
    lane: Lane
    weight: float
    served_cost: float
    share_of_lane: float
    share_of_all: float
    waits: Waits
    parks: int
    running: int
    queued: int


@dataclass(frozen=True, slots=True)
class LaneShare:
    """What a lane got. `jain_index`: of cost for the weight over all that were served there,
    whether they wanted more or not; None: fewer than two.
    """

    lane: Lane
    served_cost: float
    share_of_all: float
    jain_index: float | None


@dataclass(frozen=True, slots=True)
class Sharing:
    """Is one lane of one model shared fairly? (See `certificate.py`; both only of tenants that
    were backlogged all the time.) `jain_index`: mean over the windows; None: nobody competed.
    """

    lane: Lane
    model_id: ModelId
    certificate: float
    certificate_highest: float
    windows_compared: int
    jain_index: float | None


@dataclass(frozen=True, slots=True)
class SharesReport:
    """Who got how much of the last `window_ms`; those most served first."""

    window_ms: float
    served_cost: float
    lanes: tuple[LaneShare, ...]
    tenants: tuple[TenantShare, ...]
    sharing: tuple[Sharing, ...]


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue. `estimated_wait_ms`: of a request that would join it now; None: unknown."""

    lane: Lane
    tenant_id: TenantId
    model_id: ModelId
    queued: int
    queued_cost: float
    oldest_wait_ms: float
    estimated_wait_ms: float | None


@dataclass(frozen=True, slots=True)
class ReplicaLine:
    """What runs on a replica. `is_draining`: it takes no more work."""

    replica_id: ReplicaId
    model_id: ModelId
    slots: int
    running: int
    kv_tokens: int
    kv_tokens_taken: int
    is_draining: bool


@dataclass(frozen=True, slots=True)
class QueuesReport:
    """Everything that waits (longest wait first) and where work runs."""

    queues: tuple[QueueLine, ...]
    replicas: tuple[ReplicaLine, ...]


class OverviewPort(Protocol):
    """The scheduler as an operator sees it; each answer is of one moment."""

    def shares(self) -> SharesReport: ...

    def queues(self) -> QueuesReport: ...
