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


_prompt = lru_cache(maxsize=None)(PaperPrompt.of)


@dataclass(frozen=True, slots=True)
class Ask:
    """One arrival: who asks for what, when; `cancel_after_ms`: when the client loses patience."""

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
            _prompt(self.input_tokens),
            _SAMPLING,
            self.max_output_tokens,
            self.at_ms,
            deadline_ms,
        )


@dataclass(slots=True)
class Life:
    """An accepted request from its arrival to its end. `shown_tokens` reached the client."""

    request: Request
    output_tokens: int
    epoch: Epoch = FIRST_EPOCH
    replica_id: ReplicaId | None = None
    kv_on: ReplicaId | None = None  # where its KV was left when it was parked
    waits_since_ms: float = 0.0  # its last entry into a queue
    shown_tokens: int = 0
    served_cost: float = 0.0
    parks: int = 0
    dispatches: int = 0
    first_dispatch_ms: float | None = None
    first_token_ms: float | None = None
    ended_ms: float = field(default=-1.0)
    outcome: Outcome | None = None
