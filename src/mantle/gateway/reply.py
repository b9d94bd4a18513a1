"""What must a wire format offer so that the shared serving code can answer in it?

A wire format parses its body into a `Job` and writes the reply through a `ReplyWriter`. Invariant:
writers are pure (events in, bytes out); they know nothing of HTTP, queues or engines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mantle.core.lane import Lane
from mantle.core.sampling import SamplingParams
from mantle.core.tokens import TokenIds, Usage
from mantle.gateway.output_format import OutputFormat
from mantle.gateway.text_events import TextEvent
from mantle.scheduler.port import QueueView
from mantle.text.port import ModelText


@dataclass(frozen=True, slots=True, repr=False)
class Prompt:
    """One prompt, tokenised; `text` when the client sent it as text."""

    token_ids: TokenIds
    text: str | None = None

    def __repr__(self) -> str:
        return f"Prompt({len(self.token_ids)} tokens)"


@dataclass(frozen=True, slots=True, repr=False)
class ReplyContext:
    """What a reply says beside its text."""

    request_id: str
    model: str
    created_s: int
    fingerprint: str
    lane: Lane
    text: ModelText
    prompts: tuple[Prompt, ...]

    def reply_id(self, prefix: str) -> str:
        """The reply's own id: the same whenever it is written again."""
        return prefix + self.request_id.removeprefix("req_")


class ReplyWriter(Protocol):
    """One reply in one wire format. Streaming: `opening`, `event`…, `closing` or `failure`."""

    def opening(self, usage: Usage) -> bytes: ...

    def event(self, event: TextEvent) -> bytes:
        """Frames for one event; empty when the format has nothing to say."""
        ...

    def keepalive(self, view: QueueView | None) -> bytes: ...

    def closing(self, usage: Usage) -> bytes: ...

    def failure(self, error: Exception) -> bytes:
        """The last frames of a stream that fails after it began."""
        ...

    def whole(self, events: list[TextEvent], usage: Usage, lane: Lane) -> bytes:
        """The reply that does not stream."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """What one body asks for. Each prompt is an ask of its own, with `n` branches.

    `encode` runs off the event loop. `drops_output`: only the prompt's scores are wanted.
    """

    model: str
    encode: Callable[[ModelText], list[Prompt]]
    writer: Callable[[ReplyContext], ReplyWriter]
    sampling: SamplingParams
    max_output_tokens: int | None
    stream: bool
    n: int = 1
    service_tier: str | None = None
    stop_strings: tuple[str, ...] = ()
    echoes: bool = False
    prompt_logprobs: bool = False
    drops_output: bool = False
    ignore_eos: bool = False
    output_format: OutputFormat | None = None
    prompt_param: str = "messages"

    def __repr__(self) -> str:
        return f"Job({self.model}, n={self.n}, stream={self.stream})"


def encode_scores(logprob: float | None, floor: float) -> float | None:
    """A log-probability that JSON can hold: never NaN or infinite, never under `floor`."""
    if logprob is None:
        return None
    return min(logprob, 0.0) if logprob > floor else floor
