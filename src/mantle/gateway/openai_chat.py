"""`/v1/chat/completions`: OpenAI's chat format, in and out.

Invariant: all chunks of a stream have one id and timestamp; the usage chunk comes once, last, and
only when asked for; nothing but a real end of the text makes a `finish_reason`.
"""

from typing import Any

import msgspec

from mantle.core import limits
from mantle.core.lane import Lane
from mantle.core.tokens import Usage
from mantle.gateway import field_checks as check
from mantle.gateway import openai_fields as fields
from mantle.gateway import sse
from mantle.gateway.chat_messages import OpenAIMessage, from_openai
from mantle.gateway.output_format import from_response_format, only_one
from mantle.gateway.reply import Job, Prompt, ReplyContext, encode_scores
from mantle.gateway.text_events import (
    ChoiceEnded,
    CollectedChoice,
    PromptEcho,
    ScoredToken,
    TextDelta,
    TextEvent,
    collect,
)
from mantle.scheduler.port import QueueView
from mantle.text.port import ModelText

_TOOL_CHOICES_SERVED = ("auto", "none")


class ChatBody(fields.OpenAIFields, kw_only=True):
    """The request body. `Any` fields are there to be checked by hand or refused."""

    messages: list[OpenAIMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    # refused
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None
    web_search_options: Any = None
    continue_final_message: Any = None


decoder = msgspec.json.Decoder(ChatBody)


def parse(body: ChatBody) -> Job:
    """Raises `InvalidRequest` for whatever cannot be served."""
    _refuse_unsupported(body)
    messages = from_openai(body.messages)
    tools, template_kwargs = body.tools or None, body.chat_template_kwargs
    if body.tool_choice == "none":
        tools = None  # a model that may not call is not tempted

    def encode(text: ModelText) -> list[Prompt]:
        token_ids = text.encode_chat(messages, tools=tools, template_kwargs=template_kwargs)
        return [Prompt(tuple(token_ids))]

    usage_mode, logprobs_count = body.usage_mode(), _logprobs_count(body)
    return Job(
        model=body.model,
        encode=encode,
        writer=lambda context: ChatWriter(
            context, usage_mode, wants_scores=logprobs_count is not None
        ),
        sampling=body.sampling(logprobs_count=logprobs_count),
        max_output_tokens=_max_output_tokens(body),
        stream=bool(body.stream),
        n=body.branch_count,
        service_tier=body.tier(),
        stop_strings=body.stop_strings,
        ignore_eos=bool(body.ignore_eos),
        output_format=only_one([from_response_format(body.response_format), body.output_format()]),
    )


def _refuse_unsupported(body: ChatBody) -> None:
    body.refuse_unsupported()
    if body.modalities and "audio" in body.modalities:
        raise check.unsupported("modalities", "may hold only 'text'")
    check.refuse_given(
        {
            "audio": body.audio,
            "functions": body.functions,
            "web_search_options": body.web_search_options,
            "continue_final_message": body.continue_final_message,
        }
    )
    if body.tool_choice is not None and body.tool_choice not in _TOOL_CHOICES_SERVED:
        raise check.unsupported("tool_choice", "may only be 'auto' or 'none'")


def _max_output_tokens(body: ChatBody) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value: int | None = getattr(body, name)
        if value is not None:
            return check.whole(value, name, low=1, high=2**62, default=1)
    return None


def _logprobs_count(body: ChatBody) -> int | None:
    count = check.whole(
        body.top_logprobs, "top_logprobs", low=0, high=limits.TOP_LOGPROBS_MAX, default=0
    )
    if not body.logprobs and count > 0:
        raise check.invalid("top_logprobs", "needs 'logprobs' to be true")
    return count if body.logprobs else None


class ChatWriter:
    """One chat reply."""

    def __init__(
        self, context: ReplyContext, usage_mode: fields.UsageMode, *, wants_scores: bool
    ) -> None:
        self._context = context
        self._wants_scores = wants_scores
        self._usage_mode = usage_mode
        self._tail = fields.UsageTail(usage_mode)
        self._id = context.reply_id("chatcmpl-")
        self._scores = ScoreText(context.text)
        self._head = b"data: " + sse.encode(self._common("chat.completion.chunk", context.lane))
        self._head = self._head[:-1] + b',"choices":['
        self._openings: dict[int, bytes] = {}

    def opening(self, usage: Usage) -> bytes:
        self._tail.open(usage)
        return b""

    def event(self, event: TextEvent) -> bytes:
        index = event.choice_index
        start = b"" if index in self._openings else self._open_choice(index)
        match event:
            case TextDelta():
                return start + self._delta(event)
            case ChoiceEnded():
                finish = fields.finish_of(event.finish).encode()
                return b"".join(
                    (
                        start,
                        self._head,
                        b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"' % index,
                        finish,
                        b'"}]',
                        self._tail.after(index, event.output_tokens),
                    )
                )
            case PromptEcho():
                return start

    def keepalive(self, view: QueueView | None) -> bytes:
        return fields.keepalive(view)

    def closing(self, usage: Usage) -> bytes:
        if not self._usage_mode.at_end:
            return sse.DONE
        body = sse.encode(fields.usage_body(usage))
        return self._head + b'],"usage":' + body + b"}\n\n" + sse.DONE

    def failure(self, error: Exception) -> bytes:
        return fields.failure(error, self._context.request_id)

    def whole(self, events: list[TextEvent], usage: Usage, lane: Lane) -> bytes:
        return sse.encode(
            {
                **self._common("chat.completion", lane),
                "choices": [self._choice(choice) for choice in collect(events)],
                "usage": fields.usage_body(usage),
            }
        )

    def _common(self, kind: str, lane: Lane) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._context.created_s,
            "model": self._context.model,
            "service_tier": fields.tier_of(lane),
            "system_fingerprint": self._context.fingerprint,
        }

    def _open_choice(self, index: int) -> bytes:
        self._openings[index] = self._head + (b'{"index":%d,"delta":{"content":' % index)
        return b"".join(
            (
                self._head,
                b'{"index":%d,"delta":{"role":"assistant","content":"","refusal":null},' % index,
                b'"logprobs":null,"finish_reason":null}]',
                self._tail.after(index, 0),
            )
        )

    def _delta(self, event: TextDelta) -> bytes:
        opening = self._openings[event.choice_index]
        tail = self._tail.after(event.choice_index, event.output_tokens)
        scores = self._scores.body(event.scored) if event.scored else b"null"
        frames: list[bytes] = []
        for piece in sse.pieces(event.text):
            frames += (opening, sse.encode(piece), b'},"logprobs":', scores)
            frames += (b',"finish_reason":null}]', tail)
            scores = b"null"
        return b"".join(frames)

    def _choice(self, choice: CollectedChoice) -> dict[str, Any]:
        scores = msgspec.Raw(self._scores.body(choice.scored)) if self._wants_scores else None
        return {
            "index": choice.ended.choice_index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": scores,
            "finish_reason": fields.finish_of(choice.ended.finish),
        }


class ScoreText:
    """Chat's `logprobs` object: `token` may be lossy, `bytes` may not."""

    def __init__(self, text: ModelText) -> None:
        self._text = text

    def body(self, scored: tuple[ScoredToken, ...]) -> bytes:
        entries = [
            {
                **self._entry(token.logprob.token_id, token.logprob.logprob),
                "top_logprobs": [self._entry(*top) for top in token.logprob.top],
            }
            for token in scored
        ]
        return sse.encode({"content": entries, "refusal": None})

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": self._text.token_text(token_id),
            "logprob": encode_scores(logprob, limits.LOGPROB_FLOOR),
            "bytes": list(self._text.token_bytes(token_id)),
        }
