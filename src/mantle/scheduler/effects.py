"""What can the scheduler ask for? A short list of verbs; the dispatcher performs them in order."""

from dataclasses import dataclass

from mantle.core.epoch import Epoch
from mantle.core.errors import DeadlineExceeded, MantleError, WaitExceeded
from mantle.core.ids import ReplicaId, RequestId


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Start an attempt: the request leaves its queue and takes a slot of the replica.

    `resume_from` output tokens were produced before it was parked. An `urgent` attempt may
    interrupt the engine's step in progress.
    """

    request_id: RequestId
    replica_id: ReplicaId
    epoch: Epoch
    resume_from: int = 0
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the attempt on its replica; the slot counts as taken until the engine let go."""

    request_id: RequestId
    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Park:
    """Take the attempt out of its slot, which is free at once; it goes on later.

    Answered by `Scheduler.parked` when the engine has let go, or by the attempt's own end when
    that was already on its way.
    """

    request_id: RequestId
    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Expire:
    """The request waited past its bound (`by_deadline`: its own deadline) and left the queue."""

    request_id: RequestId
    waited_ms: float
    by_deadline: bool

    def error(self) -> MantleError:
        """What its reader is told."""
        waited_s = self.waited_ms / 1_000
        if self.by_deadline:
            return DeadlineExceeded(f"deadline passed after {waited_s:.0f} s in line")
        return WaitExceeded(
            f"no capacity became free within {waited_s:.0f} s",
            retry_after_ms=30_000.0,
            hint="retry later, or ask for a higher service tier",
        )


@dataclass(frozen=True, slots=True)
class Lose:
    """The request lost its replica too often to be tried again."""

    request_id: RequestId


Effect = Dispatch | Park | Abort | Expire | Lose
