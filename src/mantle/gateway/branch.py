"""How do the tokens of one generation become text? Detokenise, apply stop strings, keep the scores.

Invariant (split invariance): text, scores, usage and finish do not depend on how tokens were
grouped into chunks. A token's score goes out with the first of its text that goes out.
"""

from collections import deque
from collections.abc import Sequence

from mantle.core.outcome import FinishReason
from mantle.core.tokens import TokenLogprob
from mantle.gateway.text_events import ChoiceEnded, PromptEcho, ScoredToken, TextDelta, TextEvent
from mantle.scheduler.port import TokenChunk
from mantle.text.port import ModelText
from mantle.text.stop_strings import StopStrings


class Branch:
    """The text of one choice. `ended` is set once; from then on nothing may be fed.

    `drops_output`: the generation runs only for its prompt's scores (`max_tokens: 0`).
    """

    def __init__(
        self,
        text: ModelText,
        *,
        choice_index: int,
        stop_strings: Sequence[str] = (),
        echoes: bool = False,
        scores: bool = False,
        drops_output: bool = False,
    ) -> None:
        self.choice_index = choice_index
        self.output_tokens = 0
        self.ended: ChoiceEnded | None = None
        self._detokenizer = text.detokenizer()
        self._stops = StopStrings(tuple(stop_strings)) if stop_strings else None
        self._owes_echo = echoes
        self._scores = scores
        self._drops_output = drops_output
        self._pending: deque[ScoredToken] = deque()
        self._decoded_chars = 0
        self._shown_chars = 0

    def feed(self, chunk: TokenChunk) -> list[TextEvent]:
        """Events of one chunk."""
        events = self._echo(chunk.prompt_logprobs)
        if self._drops_output:
            return events
        if self._stops is None and not self._scores:
            self.output_tokens += len(chunk.token_ids)
            self._show(self._detokenizer.feed(chunk.token_ids), events)
            return events
        for index, token_id in enumerate(chunk.token_ids):
            self._feed_token(token_id, chunk.logprobs[index] if chunk.logprobs else None, events)
            if self.ended is not None:
                break
        return events

    def finish(self, finish: FinishReason) -> list[TextEvent]:
        """Events at the engine's end of the generation."""
        events = self._echo(None)
        if self._drops_output:
            self._end(FinishReason.LENGTH, None, events)
            return events
        tail = self._detokenizer.flush()
        self._decoded_chars += len(tail)
        matched: str | None = None
        if self._stops is not None:
            tail, matched = self._stops.feed(tail)
            if matched is None:
                tail += self._stops.flush()
        self._show(tail, events, is_last=matched is None)
        self._end(FinishReason.STOP_STRING if matched is not None else finish, matched, events)
        return events

    def _echo(self, logprobs: tuple[TokenLogprob, ...] | None) -> list[TextEvent]:
        if not self._owes_echo:
            return []
        self._owes_echo = False
        return [PromptEcho(self.choice_index, logprobs)]

    def _feed_token(
        self, token_id: int, logprob: TokenLogprob | None, events: list[TextEvent]
    ) -> None:
        self.output_tokens += 1
        if logprob is not None:
            self._pending.append(ScoredToken(logprob, self._decoded_chars))
        text = self._detokenizer.feed((token_id,))
        self._decoded_chars += len(text)
        matched: str | None = None
        if self._stops is not None:
            text, matched = self._stops.feed(text)
        self._show(text, events)
        if matched is not None:
            self._end(FinishReason.STOP_STRING, matched, events)

    def _show(self, text: str, events: list[TextEvent], *, is_last: bool = False) -> None:
        """Add `text`, cut so that each piece carries the scores of the tokens that start in it."""
        if not self._pending:
            if text:
                self._shown_chars += len(text)
                events.append(TextDelta(self.choice_index, text, self.output_tokens))
            return
        start = self._shown_chars
        end = self._shown_chars = start + len(text)
        shown = start
        while self._pending and (self._pending[0].char_offset < end or is_last):
            offset = self._pending[0].char_offset
            scored = []
            while self._pending and self._pending[0].char_offset <= offset:
                scored.append(self._pending.popleft())
            until = self._pending[0].char_offset if self._pending else end
            until = max(shown, min(until, end))
            piece = text[shown - start : until - start]
            shown = until
            events.append(TextDelta(self.choice_index, piece, self.output_tokens, tuple(scored)))
        if shown < end:
            events.append(TextDelta(self.choice_index, text[shown - start :], self.output_tokens))

    def _end(self, finish: FinishReason, stop_string: str | None, events: list[TextEvent]) -> None:
        self.ended = ChoiceEnded(self.choice_index, finish, self.output_tokens, stop_string)
        events.append(self.ended)
