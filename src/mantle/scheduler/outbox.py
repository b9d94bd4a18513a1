"""Which sequence on which replica is which request? And the commands not yet sent there.

Invariant: a request has at most one current sequence; outputs of any other are nobody's (law 6).
Commands to a replica keep their order, and all that one event gave go out together.
"""

import itertools
from dataclasses import dataclass, field

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.ids import ReplicaId, RequestId
from mantle.core.tokens import Usage
from mantle.engine.port import Admit, Cancel, Command, Forget, Park, Resume, SequenceSpec
from mantle.pool.port import ReplicaPool
from mantle.scheduler.generation import LiveGeneration


@dataclass(slots=True)
class Live:
    """A request between acceptance and its end.

    `sequence_id` is set while it is on a replica, `parked_on` while a replica may hold its KV:
    the replica, and the sequence id it had there. `output` is what was given to the journal, which
    may be more than what it has committed and its reader has seen.
    """

    generation: LiveGeneration
    epoch: Epoch = FIRST_EPOCH
    sequence_id: int | None = None
    parked_on: tuple[ReplicaId, int] | None = None
    output: list[int] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """What it has used, shown or not."""
        prompt_tokens = len(self.generation.request.prompt_tokens)
        return Usage(prompt_tokens, self.cached_tokens, len(self.output))


class Outbox:
    """Sequences and commands of all replicas."""

    def __init__(self, pool: ReplicaPool) -> None:
        self._pool = pool
        self._numbers = itertools.count(1)
        self._request_of: dict[int, RequestId] = {}
        self._commands: dict[ReplicaId, list[Command]] = {}

    def request_of(self, sequence_id: int) -> RequestId | None:
        """Whose current sequence this is."""
        return self._request_of.get(sequence_id)

    def enter(self, live: Live, replica_id: ReplicaId, *, urgent: bool) -> None:
        """Begin a new attempt; it goes on after the output that was written down."""
        request = live.generation.request
        if live.sequence_id is not None:  # of an attempt that was lost
            self._request_of.pop(live.sequence_id, None)
        live.sequence_id = next(self._numbers)
        self._request_of[live.sequence_id] = request.id
        spec = SequenceSpec(
            sequence_id=live.sequence_id,
            prompt_tokens=list(request.prompt_tokens),
            max_output_tokens=request.max_output_tokens,
            sampling=request.sampling,
            resume_tokens=list(live.output),
            lane_rank=request.lane.rank,
            prompt_logprobs=request.prompt_logprobs,
            ignore_eos=request.ignore_eos,
            grammar=request.grammar,
            urgent=urgent,
        )
        if live.parked_on is not None and live.parked_on[0] == replica_id:
            self._add(replica_id, Resume(replica_id, spec, live.parked_on[1]))
        else:  # KV that another replica holds is of no use here
            self._forget_parked(live)
            self._add(replica_id, Admit(replica_id, spec))
        live.parked_on = None

    def park(self, live: Live, replica_id: ReplicaId) -> None:
        """Ask for the slot back; the sequence stays current until `parked`."""
        assert live.sequence_id is not None, "what is parked was running"
        self._add(replica_id, Park(replica_id, live.sequence_id))

    def parked(self, replica_id: ReplicaId, sequence_id: int) -> RequestId | None:
        """The engine has let go; None (and the KV is dropped) when nobody wants it any more."""
        request_id = self._request_of.pop(sequence_id, None)
        if request_id is None:
            self._add(replica_id, Forget(replica_id, sequence_id))
        return request_id

    def abort(self, live: Live, replica_id: ReplicaId) -> None:
        """Stop the sequence."""
        if live.sequence_id is not None:
            self._add(replica_id, Cancel(replica_id, live.sequence_id))

    def leave(self, live: Live) -> None:
        """The request is over or back in its queue: its sequence is nobody's from now on."""
        if live.sequence_id is not None:
            self._request_of.pop(live.sequence_id, None)
            live.sequence_id = None
        self._forget_parked(live)

    def replica_gone(self, replica_id: ReplicaId) -> None:
        self._commands.pop(replica_id, None)

    def flush(self) -> None:
        """Send everything; call it once an event is dealt with."""
        commands, self._commands = self._commands, {}
        for replica_id, batch in commands.items():
            self._pool.send(replica_id, batch)

    def _forget_parked(self, live: Live) -> None:
        if live.parked_on is not None:
            replica_id, parked_id = live.parked_on
            self._add(replica_id, Forget(replica_id, parked_id))
            live.parked_on = None

    def _add(self, replica_id: ReplicaId, command: Command) -> None:
        self._commands.setdefault(replica_id, []).append(command)
