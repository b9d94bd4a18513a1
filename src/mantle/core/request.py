"""What did the client ask, wire formats gone? The unit that queues and is scheduled."""

from dataclasses import dataclass

from mantle.core.epoch import Epoch
from mantle.core.ids import ModelId, ProjectId, ReplicaId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.sampling import SamplingParams
from mantle.core.tokens import TokenCursor, TokenIds


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """One branch of what a client asked (n>1 gives n requests, `branch_index` 0…n−1).

    `accepted_ms` and `deadline_ms` are on the injected monotonic clock. `stop_strings` are kept
    for the record: the gateway applies them. `prompt_logprobs` asks for the log-probability of
    each prompt token (as many alternatives as `sampling.logprobs_count`). `grammar` (in the form of
    llguidance, "" for none) is what the output must fit. Unless `keeps_content`, nothing of its
    text or tokens is ever written down.
    """

    id: RequestId
    tenant_id: TenantId
    project_id: ProjectId
    model_id: ModelId
    lane: Lane
    prompt_tokens: TokenIds
    sampling: SamplingParams
    max_output_tokens: int
    accepted_ms: float
    deadline_ms: float | None = None
    branch_index: int = 0
    stop_strings: tuple[str, ...] = ()
    prompt_logprobs: bool = False
    ignore_eos: bool = False
    grammar: str = ""
    keeps_content: bool = True

    def __repr__(self) -> str:
        return (
            f"Request({self.id}, tenant={self.tenant_id}, model={self.model_id}, lane={self.lane}, "
            f"prompt={len(self.prompt_tokens)} tokens, max_output={self.max_output_tokens})"
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a request on one replica. Its tokens count only while `epoch` is current."""

    request_id: RequestId
    replica_id: ReplicaId
    epoch: Epoch
    resume_from: TokenCursor
