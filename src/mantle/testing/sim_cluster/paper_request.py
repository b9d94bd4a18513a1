"""What is a request on paper? Lengths instead of text, and what the model would say.

Invariant: `output_tokens` is the truth that only the simulated engine knows; the scheduler sees
nothing but the `Request`.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.ids import ModelId, ProjectId, ReplicaId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.outcome import Outcome
from mantle.core.request import Request
from mantle.core.sampling import SamplingParams
from mantle.journal.record import Finished
from mantle.testing.sim_cluster.paper_engine import Progress

_SAMPLING = SamplingParams()
_PROJECT = ProjectId("default")


class PaperPrompt(tuple[int, ...]):
    """A prompt of which only the length exists: a trace of long prompts fits into memory."""

    _length: int

    @classmethod
    def of(cls, length: int) -> "PaperPrompt":
        prompt = cls()
        prompt._length = length
        return prompt

    def __len__(self) -> int:
        return self._length


paper_prompt = lru_cache(maxsize=None)(PaperPrompt.of)


@dataclass(frozen=True, slots=True)
class Ask:
    """One arrival: who asks for what, when; `cancel_after_ms`: when the client loses patience.

    Unless it `streams`, its client cannot find it again once the server has died.
    """

    at_ms: float
    tenant_id: TenantId
    model_id: ModelId
    lane: Lane
    input_tokens: int
    output_tokens: int
    max_output_tokens: int
    deadline_after_ms: float | None = None
    cancel_after_ms: float | None = None
    branches: int = 1
    streams: bool = True
    keeps_content: bool = True

    def request(self, request_id: RequestId) -> Request:
        """The request that the scheduler gets to see."""
        deadline_ms = None
        if self.deadline_after_ms is not None:
            deadline_ms = self.at_ms + self.deadline_after_ms
        return Request(
            request_id,
            self.tenant_id,
            _PROJECT,
            self.model_id,
            self.lane,
            paper_prompt(self.input_tokens),
            _SAMPLING,
            self.max_output_tokens,
            self.at_ms,
            deadline_ms,
            keeps_content=self.keeps_content,
        )


@dataclass(slots=True)
class Life:
    """An accepted request from its arrival to its end, over all servers that work on it.

    `written_tokens` were given to the journal, `durable_tokens` are safe there, `shown_tokens`
    reached the client.
    """

    request: Request
    output_tokens: int
    ask_id: str = ""
    epoch: Epoch = FIRST_EPOCH
    replica_id: ReplicaId | None = None
    kv_on: ReplicaId | None = None  # where its KV was left when it was parked
    queued_ms: float = 0.0  # its first entry into a queue of this server
    waits_since_ms: float = 0.0  # its last entry into a queue
    written_tokens: int = 0
    durable_tokens: int = 0
    shown_tokens: int = 0
    durable_epoch: int = 0
    last_said: Progress | None = None  # of its newest tokens, by whatever attempt
    is_promised: bool = False  # its ask is durable, so the client may have been told of it
    outlived_a_server: bool = False
    is_set_aside: bool = False  # a record of its ask was damaged
    gave_up: bool = False  # its client has taken it back
    is_deaf: bool = False  # and this server knows
    final: Finished | None = None  # its end, once that is durable
    served_cost: float = 0.0
    parks: int = 0
    dispatches: int = 0
    first_dispatch_ms: float | None = None
    first_token_ms: float | None = None
    ended_ms: float = field(default=-1.0)
    outcome: Outcome | None = None
