"""Which fields do both OpenAI routes share? Sampling, stops, tiers, usage, stream frames.

Invariant: a field that would change the output is either served or refused by name; every other
unknown field is ignored.
"""

from typing import Any, Final

import msgspec

from mantle.core import limits
from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason
from mantle.core.sampling import SamplingParams
from mantle.core.tokens import Usage
from mantle.gateway import field_checks as check
from mantle.gateway import sse, wire_errors
from mantle.gateway.output_format import OutputFormat, from_extensions
from mantle.gateway.queue_words import queue_words
from mantle.scheduler.port import QueueView

SERVICE_TIERS: Final = frozenset(
    {"auto", "default", "flex", "priority", "scale", "fast", "reserved"}
)
_TIER_ALIASES: Final = {"fast": "priority"}
_TIER_OF_LANE: Final = {
    Lane.RESERVED: "scale",
    Lane.PRIORITY: "priority",
    Lane.STANDARD: "default",
    Lane.FLEX: "flex",
}
_FINISH: Final = {
    FinishReason.END: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.WINDOW: "length",
}
_LEAST_TOP_P: Final = 1e-6  # `top_p: 0` keeps only the likeliest token


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIFields(msgspec.Struct, kw_only=True):
    """Fields of both routes; those that stand below `refused` are named only to be refused."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: str | None = None
    # extensions that other servers know, too
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    # refused
    min_tokens: int | None = None
    stop_token_ids: Any = None
    bad_words: Any = None
    use_beam_search: Any = None

    @property
    def branch_count(self) -> int:
        return check.whole(self.n, "n", low=1, high=limits.CHOICES_MAX, default=1)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return check.stop_strings(self.stop, "stop")

    def sampling(self, *, logprobs_count: int | None) -> SamplingParams:
        """Effective parameters; OpenAI's ranges. Raises `InvalidRequest`."""
        top_k = check.whole(self.top_k, "top_k", low=-1, high=2**31 - 1, default=0)
        top_p = check.number(self.top_p, "top_p", low=0, high=1, default=1)
        return SamplingParams(
            temperature=check.number(self.temperature, "temperature", low=0, high=2, default=1),
            top_p=max(top_p, _LEAST_TOP_P),
            top_k=max(top_k, 0),
            min_p=check.number(self.min_p, "min_p", low=0, high=1, default=0),
            presence_penalty=self._penalty("presence_penalty"),
            frequency_penalty=self._penalty("frequency_penalty"),
            repetition_penalty=check.number(
                self.repetition_penalty, "repetition_penalty", low=0.01, high=10, default=1
            ),
            logit_bias=check.logit_bias(self.logit_bias, "logit_bias"),
            seed=check.seed(self.seed),
            logprobs_count=logprobs_count,
        )

    def tier(self) -> str | None:
        """The client's word for the lane, checked."""
        tier = check.one_of(self.service_tier, "service_tier", SERVICE_TIERS)
        return None if tier is None else _TIER_ALIASES.get(tier, tier)

    def refuse_unsupported(self) -> None:
        names = ("min_tokens", "stop_token_ids", "bad_words", "use_beam_search")
        check.refuse_given({name: getattr(self, name) for name in names})

    def output_format(self) -> OutputFormat | None:
        """What the extensions say of it; chat has a field of its own beside them."""
        names = ("json", "regex", "choice", "grammar")
        guided = {name: getattr(self, f"guided_{name}") for name in names}
        return from_extensions(self.structured_outputs, guided)

    def usage_mode(self) -> "UsageMode":
        options = self.stream_options or StreamOptions()
        return UsageMode(
            at_end=bool(options.include_usage), always=bool(options.continuous_usage_stats)
        )

    def _penalty(self, name: str) -> float:
        return check.number(getattr(self, name), name, low=-2, high=2, default=0)


class UsageMode(msgspec.Struct, frozen=True):
    """When a stream says its usage: in a last chunk of its own, in every chunk, or never."""

    at_end: bool = False
    always: bool = False


class UsageTail:
    """The `usage` part of stream chunks, as JSON text that ends the chunk's object."""

    def __init__(self, mode: UsageMode) -> None:
        self._mode = mode
        self._output_tokens: dict[int, int] = {}
        self._prompt_tokens = 0
        self._constant = b',"usage":null}\n\n' if mode.at_end else b"}\n\n"

    def open(self, usage: Usage) -> None:
        self._prompt_tokens = usage.input_tokens

    def after(self, choice_index: int, output_tokens: int) -> bytes:
        """End of a chunk that brings `choice_index` to `output_tokens`."""
        if not self._mode.always:
            return self._constant
        self._output_tokens[choice_index] = output_tokens
        usage = Usage(self._prompt_tokens, 0, sum(self._output_tokens.values()))
        return b',"usage":' + sse.encode(usage_body(usage)) + b"}\n\n"


def usage_body(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": 0,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def tier_of(lane: Lane) -> str:
    """The served lane in OpenAI's words."""
    return _TIER_OF_LANE[lane]


def finish_of(finish: FinishReason) -> str:
    return _FINISH[finish]


def keepalive(view: QueueView | None) -> bytes:
    """A comment that says whether the request still waits."""
    if view is None:
        return sse.comment("working")
    return sse.comment(queue_words(view))


def failure(error: Exception, request_id: str) -> bytes:
    """OpenAI's error frame; the stream still ends with [DONE]."""
    return b"data: " + wire_errors.openai_envelope(error, request_id) + b"\n\n" + sse.DONE
