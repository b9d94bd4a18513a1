"""What happens to a reply's text, in order? The events between generations and wire formats.

Invariant: joined over a choice, `TextDelta.text` is the whole text; exactly one `ChoiceEnded`
closes each choice and nothing of that choice follows.
"""

from dataclasses import dataclass
from typing import assert_never

from mantle.core.outcome import FinishReason
from mantle.core.tokens import TokenLogprob


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token's log-probabilities and where its text starts (characters in the output)."""

    logprob: TokenLogprob
    char_offset: int


@dataclass(frozen=True, slots=True, repr=False)
class TextDelta:
    """New text of one choice, with its tokens when log-probabilities were asked for.

    `output_tokens` is how many tokens this choice has used so far.
    """

    choice_index: int
    text: str
    output_tokens: int
    scored: tuple[ScoredToken, ...] = ()

    def __repr__(self) -> str:
        return f"TextDelta(choice {self.choice_index}, {len(self.text)} characters)"


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """A choice begins; the prompt's log-probabilities, when they were asked for."""

    choice_index: int
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True, repr=False)
class ChoiceEnded:
    """A choice is complete. `stop_string` is the one that ended it."""

    choice_index: int
    finish: FinishReason
    output_tokens: int
    stop_string: str | None = None

    def __repr__(self) -> str:
        return f"ChoiceEnded(choice {self.choice_index}, {self.finish})"


TextEvent = TextDelta | PromptEcho | ChoiceEnded


@dataclass(slots=True)
class CollectedChoice:
    """A whole choice, for replies that do not stream. Holds text: never logged."""

    text: str
    scored: tuple[ScoredToken, ...]
    prompt_logprobs: tuple[TokenLogprob, ...] | None
    ended: ChoiceEnded

    def __repr__(self) -> str:
        return f"CollectedChoice({len(self.text)} characters, {self.ended!r})"


def collect(events: list[TextEvent]) -> list[CollectedChoice]:
    """The choices that `events` make up, by index. All of them must have ended."""
    texts: dict[int, list[str]] = {}
    scored: dict[int, list[ScoredToken]] = {}
    prompts: dict[int, tuple[TokenLogprob, ...] | None] = {}
    ended: dict[int, ChoiceEnded] = {}
    for event in events:
        match event:
            case TextDelta():
                texts.setdefault(event.choice_index, []).append(event.text)
                scored.setdefault(event.choice_index, []).extend(event.scored)
            case PromptEcho():
                prompts[event.choice_index] = event.logprobs
            case ChoiceEnded():
                ended[event.choice_index] = event
            case _:
                assert_never(event)
    return [
        CollectedChoice(
            "".join(texts.get(index, ())),
            tuple(scored.get(index, ())),
            prompts.get(index),
            ended[index],
        )
        for index in sorted(ended)
    ]
