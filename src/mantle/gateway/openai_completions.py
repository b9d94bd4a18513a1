"""`/v1/completions`: OpenAI's older text format, in and out.

Invariant: choices are numbered prompt-major; with `echo` and `logprobs` the lists cover prompt and
output, one entry a token, the first log-probability null.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from mantle.core import limits
from mantle.core.lane import Lane
from mantle.core.tokens import TokenLogprob, Usage
from mantle.gateway import field_checks as check
from mantle.gateway import openai_fields as fields
from mantle.gateway import sse
from mantle.gateway.completion_scores import ScoredPiece, scores_body
from mantle.gateway.reply import Job, Prompt, ReplyContext
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

_SCORES_PER_FRAME = 12
"""Prompt tokens whose scores share a frame: with 20 alternatives each they fit a line."""


class CompletionBody(fields.OpenAIFields, kw_only=True):
    """The request body."""

    prompt: str | list[Any] | None
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    # refused
    suffix: str | None = None


decoder = msgspec.json.Decoder(CompletionBody)


def parse(body: CompletionBody) -> Job:
    """Raises `InvalidRequest` for whatever cannot be served."""
    body.refuse_unsupported()
    check.refuse_given({"suffix": body.suffix})
    n, echoes = body.branch_count, bool(body.echo)
    if body.best_of is not None and body.best_of != n:
        raise check.unsupported("best_of", "must equal 'n'")
    prompts = _prompts(body.prompt)
    if len(prompts) * n > limits.CHOICES_MAX:
        raise check.invalid("prompt", f"times 'n' may give at most {limits.CHOICES_MAX} choices")
    max_tokens = check.whole(
        body.max_tokens,
        "max_tokens",
        low=0 if echoes else 1,
        high=2**62,
        default=limits.COMPLETION_MAX_TOKENS_DEFAULT,
    )
    scores = None
    if body.logprobs is not None:
        scores = check.whole(
            body.logprobs, "logprobs", low=0, high=limits.TOP_LOGPROBS_MAX, default=0
        )
    scores_prompt = echoes and scores is not None
    usage_mode = body.usage_mode()
    return Job(
        model=body.model,
        encode=lambda text: [_encode(text, prompt, path) for path, prompt in prompts],
        writer=lambda context: CompletionWriter(
            context, usage_mode, n=n, echoes=echoes, wants_scores=scores is not None
        ),
        sampling=body.sampling(logprobs_count=scores),
        max_output_tokens=max(1, max_tokens),
        stream=bool(body.stream),
        n=n,
        service_tier=body.tier(),
        stop_strings=body.stop_strings,
        echoes=echoes,
        prompt_logprobs=scores_prompt,
        drops_output=max_tokens == 0,
        # Who scores a prompt with one token more counts on exactly one (lm-eval cuts it off).
        ignore_eos=bool(body.ignore_eos) or (scores_prompt and max_tokens == 1),
        output_format=body.output_format(),
        prompt_param="prompt",
    )


def _prompts(value: str | list[Any] | None) -> list[tuple[str, str | list[int]]]:
    """Each prompt with its path. Text, texts, token ids, or lists of token ids."""
    if value is None or isinstance(value, str):
        return [("prompt", value or "")]
    if not value:
        raise check.invalid("prompt", "must not be an empty list")
    if _are_token_ids(value):
        return [("prompt", value)]
    prompts = [(f"prompt[{index}]", prompt) for index, prompt in enumerate(value)]
    for path, prompt in prompts:
        if isinstance(prompt, str) != isinstance(value[0], str):
            raise check.invalid(path, "must be of the same type as the other prompts")
        if not isinstance(prompt, str) and not (
            isinstance(prompt, list) and prompt and _are_token_ids(prompt)
        ):
            raise check.invalid(path, "must be a string or a list of token ids")
    return prompts


def _are_token_ids(value: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in value)


def _encode(text: ModelText, prompt: str | list[int], path: str) -> Prompt:
    if isinstance(prompt, str):
        encoded = Prompt(tuple(text.encode(prompt)), prompt)
    else:
        check.check_token_ids(prompt, path, vocab_size=text.vocab_size)
        encoded = Prompt(tuple(prompt))
    if not encoded.token_ids:
        raise check.invalid(path, "must hold at least one token")
    return encoded


class CompletionWriter:
    """One completions reply."""

    def __init__(
        self,
        context: ReplyContext,
        usage_mode: fields.UsageMode,
        *,
        n: int,
        echoes: bool,
        wants_scores: bool,
    ) -> None:
        self._context = context
        self._usage_mode = usage_mode
        self._n = n
        self._echoes = echoes
        self._wants_scores = wants_scores
        self._tail = fields.UsageTail(usage_mode)
        self._prompt_texts: dict[int, str] = {}
        self._common = {
            "id": context.reply_id("cmpl-"),
            "object": "text_completion",
            "created": context.created_s,
            "model": context.model,
            "system_fingerprint": context.fingerprint,
        }
        self._head = b"data: " + sse.encode(self._common)[:-1] + b',"choices":['

    def opening(self, usage: Usage) -> bytes:
        self._tail.open(usage)
        return b""

    def event(self, event: TextEvent) -> bytes:
        match event:
            case TextDelta():
                pieces = self._output_pieces(event.choice_index, event.scored)
                return self._frames(event, event.text, scores_body(pieces, self._context.text))
            case PromptEcho():
                return self._echo(event)
            case ChoiceEnded():
                finish = fields.finish_of(event.finish).encode()
                return self._frame(event, b'""', b"null", b'"' + finish + b'"')

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
                **self._common,
                "choices": [self._choice(choice) for choice in collect(events)],
                "usage": fields.usage_body(usage),
            }
        )

    def _choice(self, choice: CollectedChoice) -> dict[str, Any]:
        index = choice.ended.choice_index
        prompt_text = self._prompt_text(index) if self._echoes else ""
        scores = b"null"
        if self._wants_scores:
            pieces = self._prompt_pieces(choice.prompt_logprobs or ())
            pieces += self._output_pieces(index, choice.scored)
            scores = scores_body(pieces, self._context.text, even_if_empty=True)
        return {
            "index": index,
            "text": prompt_text + choice.text,
            "logprobs": msgspec.Raw(scores),
            "finish_reason": fields.finish_of(choice.ended.finish),
        }

    def _echo(self, event: PromptEcho) -> bytes:
        """The prompt's text, then its scores in frames that keep the line limit."""
        index = event.choice_index
        ended = TextDelta(index, "", 0)
        frames = self._frames(ended, self._prompt_text(index), b"null")
        pieces = self._prompt_pieces(event.logprobs or ())
        for start in range(0, len(pieces), _SCORES_PER_FRAME):
            scores = scores_body(pieces[start : start + _SCORES_PER_FRAME], self._context.text)
            frames += self._frame(ended, b'""', scores, b"null")
        return frames

    def _frames(self, event: TextDelta, text: str, scores: bytes) -> bytes:
        frames = []
        for piece in sse.pieces(text):
            frames.append(self._frame(event, sse.encode(piece), scores, b"null"))
            scores = b"null"
        return b"".join(frames)

    def _frame(
        self, event: TextDelta | ChoiceEnded, text: bytes, scores: bytes, finish: bytes
    ) -> bytes:
        return b"".join(
            (
                self._head,
                b'{"index":%d,"text":' % event.choice_index,
                text,
                b',"logprobs":',
                scores,
                b',"finish_reason":',
                finish,
                b"}]",
                self._tail.after(event.choice_index, event.output_tokens),
            )
        )

    def _prompt_text(self, choice_index: int) -> str:
        prompt_index = choice_index // self._n
        if prompt_index not in self._prompt_texts:
            prompt = self._context.prompts[prompt_index]
            detokenizer = self._context.text.detokenizer()
            self._prompt_texts[prompt_index] = (
                detokenizer.feed(prompt.token_ids) + detokenizer.flush()
                if prompt.text is None
                else prompt.text
            )
        return self._prompt_texts[prompt_index]

    def _prompt_pieces(self, logprobs: Sequence[TokenLogprob]) -> list[ScoredPiece]:
        detokenizer = self._context.text.detokenizer()
        pieces, offset = [], 0
        for logprob in logprobs:
            pieces.append(ScoredPiece(logprob, offset))
            offset += len(detokenizer.feed((logprob.token_id,)))
        return pieces

    def _output_pieces(self, choice_index: int, scored: Sequence[ScoredToken]) -> list[ScoredPiece]:
        if not scored:
            return []
        start = len(self._prompt_text(choice_index)) if self._echoes else 0
        return [ScoredPiece(token.logprob, start + token.char_offset) for token in scored]
