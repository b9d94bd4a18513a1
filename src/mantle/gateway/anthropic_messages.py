"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's format, in and out.

Invariant: events come in the protocol's order and every one has a name; a delta only ever stands
in an open block; a stream that fails ends with `error`, never with `message_stop`.
"""

from typing import Any, Final

import msgspec

from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason
from mantle.core.sampling import SamplingParams
from mantle.core.tokens import Usage
from mantle.gateway import field_checks as check
from mantle.gateway import sse, wire_errors
from mantle.gateway.anthropic_content import AnthropicMessage, Block, to_chat
from mantle.gateway.output_format import OutputFormat, from_schema
from mantle.gateway.queue_words import queue_words
from mantle.gateway.reply import Job, Prompt, ReplyContext
from mantle.gateway.text_events import ChoiceEnded, PromptEcho, TextDelta, TextEvent, collect
from mantle.scheduler.port import QueueView
from mantle.text.port import ModelText

SERVICE_TIERS: Final = frozenset(
    {"auto", "standard_only", "default", "flex", "priority", "reserved"}
)
SAMPLING_REFUSED_FROM: Final = "2026-10-21"
"""The API version that no longer takes sampling parameters (we do, unless strict)."""

_TIER_OF_LANE: Final = {
    Lane.RESERVED: "priority",
    Lane.PRIORITY: "priority",
    Lane.STANDARD: "standard",
    Lane.FLEX: "batch",
}
_STOP_REASON: Final = {
    FinishReason.END: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.WINDOW: "model_context_window_exceeded",
}
_PING: Final = sse.named("ping", {"type": "ping"})


class CountBody(msgspec.Struct, kw_only=True):
    """What decides the prompt; the whole body of `count_tokens`."""

    model: str
    messages: list[AnthropicMessage]
    system: str | list[Block] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    output_config: Any = None


class MessagesBody(CountBody, kw_only=True):
    """The body of `/v1/messages`; betas and further fields are ignored."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    service_tier: str | None = None
    output_format: Any = None


count_decoder = msgspec.json.Decoder(CountBody)
decoder = msgspec.json.Decoder(MessagesBody)


class Encode:
    """The body's prompt; both routes use it, so their token counts agree."""

    def __init__(self, body: CountBody) -> None:
        _refuse_unsupported(body)
        self._messages = to_chat(body.system, body.messages)
        self._tools = None if _kind(body.tool_choice) == "none" else _tools(body.tools)

    def __call__(self, text: ModelText) -> list[Prompt]:
        return [Prompt(tuple(text.encode_chat(self._messages, tools=self._tools)))]


def check_version(version: str | None, body: MessagesBody) -> None:
    """What `strict_api_version` refuses. Raises `InvalidRequest`."""
    if version is None:
        raise check.missing("anthropic-version")
    if version >= SAMPLING_REFUSED_FROM:
        for name in ("temperature", "top_p", "top_k"):
            if getattr(body, name) is not None:
                raise check.unsupported(name, f"is not part of anthropic-version {version[:16]}")


def parse(body: MessagesBody) -> Job:
    """Raises `InvalidRequest` for whatever cannot be served."""
    return Job(
        model=body.model,
        encode=Encode(body),
        writer=MessageWriter,
        sampling=SamplingParams(
            temperature=check.number(body.temperature, "temperature", low=0, high=2, default=1),
            top_p=max(check.number(body.top_p, "top_p", low=0, high=1, default=1), 1e-6),
            top_k=max(check.whole(body.top_k, "top_k", low=-1, high=2**31 - 1, default=0), 0),
            seed=check.seed(None),
        ),
        max_output_tokens=check.whole(body.max_tokens, "max_tokens", low=1, high=2**62, default=1),
        stream=bool(body.stream),
        service_tier=check.one_of(body.service_tier, "service_tier", SERVICE_TIERS),
        stop_strings=check.stop_strings(body.stop_sequences, "stop_sequences"),
        output_format=_output_format(body),
    )


def _refuse_unsupported(body: CountBody) -> None:
    if _kind(body.tool_choice) not in (None, "auto", "none"):
        raise check.unsupported("tool_choice", "may only be of type 'auto' or 'none'")


def _output_format(body: MessagesBody) -> OutputFormat | None:
    """`output_config.format`, or `output_format` as its beta had it."""
    config = body.output_config if isinstance(body.output_config, dict) else {}
    for param, value in (
        ("output_config.format", config.get("format")),
        ("output_format", body.output_format),
    ):
        if value is None:
            continue
        if not isinstance(value, dict) or value.get("type") != "json_schema":
            raise check.invalid(f"{param}.type", "must be 'json_schema'")
        return from_schema(value.get("schema"), f"{param}.schema", strict=True)
    return None


def _kind(tool_choice: Any) -> Any:
    return tool_choice.get("type") if isinstance(tool_choice, dict) else tool_choice


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Client tools in the form that templates read; server tools are not ours to run."""
    functions = [
        {
            "type": "function",
            "function": {
                "name": tool.get("name", ""),
                "description": tool.get("description", ""),
                "parameters": tool["input_schema"],
            },
        }
        for tool in tools or ()
        if "input_schema" in tool
    ]
    return functions or None


class MessageWriter:
    """One Anthropic reply: a single text block."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._id = context.reply_id("msg_")
        self._is_open = False
        self._ended: ChoiceEnded | None = None

    def opening(self, usage: Usage) -> bytes:
        message = self._message([], None, usage, self._context.lane)
        return sse.named("message_start", {"type": "message_start", "message": message})

    def event(self, event: TextEvent) -> bytes:
        match event:
            case TextDelta():
                return self._open_block() + b"".join(map(_delta, sse.pieces(event.text)))
            case ChoiceEnded():
                self._ended = event
                return self._open_block()
            case PromptEcho():
                return b""

    def keepalive(self, view: QueueView | None) -> bytes:
        return _PING if view is None else sse.remark(queue_words(view)) + _PING

    def closing(self, usage: Usage) -> bytes:
        assert self._ended is not None, "a message closed before its text ended"
        delta = {**_stop(self._ended), "container": None}
        counts = usage_body(usage)
        return b"".join(
            (
                sse.named("content_block_stop", {"type": "content_block_stop", "index": 0}),
                sse.named(
                    "message_delta", {"type": "message_delta", "delta": delta, "usage": counts}
                ),
                sse.named("message_stop", {"type": "message_stop"}),
            )
        )

    def failure(self, error: Exception) -> bytes:
        envelope = wire_errors.anthropic_envelope(error, self._context.request_id)
        return b"event: error\ndata: " + envelope + b"\n\n"

    def whole(self, events: list[TextEvent], usage: Usage, lane: Lane) -> bytes:
        choice = collect(events)[0]
        block = {"type": "text", "text": choice.text, "citations": None}
        return sse.encode(self._message([block], choice.ended, usage, lane))

    def _open_block(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        block = {"type": "text", "text": "", "citations": None}
        return sse.named(
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": block},
        )

    def _message(
        self, content: list[dict[str, Any]], ended: ChoiceEnded | None, usage: Usage, lane: Lane
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._context.model,
            "content": content,
            **_stop(ended),
            "container": None,
            "usage": {
                **usage_body(usage),
                "cache_creation": None,
                "inference_geo": None,
                "service_tier": _TIER_OF_LANE[lane],
            },
        }


_DELTA_HEAD: Final = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
)


def _delta(piece: str) -> bytes:
    return _DELTA_HEAD + sse.encode(piece) + b"}}\n\n"


def _stop(ended: ChoiceEnded | None) -> dict[str, Any]:
    return {
        "stop_reason": _STOP_REASON[ended.finish] if ended else None,
        "stop_sequence": ended.stop_string if ended else None,
        "stop_details": None,
    }


def usage_body(usage: Usage) -> dict[str, Any]:
    """Anthropic's counters: cached tokens are not part of `input_tokens`."""
    return {
        "input_tokens": usage.uncached_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens_details": None,
        "server_tool_use": None,
    }


def count_reply(input_tokens: int) -> bytes:
    return sse.encode({"input_tokens": input_tokens})
