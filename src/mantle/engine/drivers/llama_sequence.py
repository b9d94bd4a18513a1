"""What does the llama.cpp driver remember of one resident sequence?

Invariant: `known` (prompt, then output so far) is all that decides the rest; everything else here
is derived from it or says how far the KV has come.
"""

from dataclasses import dataclass, field

import numpy as np

from mantle.core.outcome import FinishReason
from mantle.engine.drivers.prefix_cache import Slot
from mantle.engine.grammar import GrammarState
from mantle.engine.logprobs import IdArray
from mantle.engine.port import LogprobEntry, SequenceOutput, SequenceSpec
from mantle.engine.sampling import Choice, Draw, TokenHistory


@dataclass(slots=True, repr=False)
class Resident:
    """One sequence between `admit` and its end. `slot` is None until its prefill may begin."""

    spec: SequenceSpec
    order: int
    known: list[int]
    history: TokenHistory | None
    banned_ids: IdArray | None
    grammar: GrammarState | None = None
    parked_kv: bytes | None = None
    slot: Slot | None = None
    cached_tokens: int = 0
    has_reported: bool = False
    prompt_logprobs: list[LogprobEntry] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Resident({self.spec.sequence_id}, {len(self.known)} tokens)"

    @classmethod
    def of(
        cls,
        spec: SequenceSpec,
        *,
        output: list[int],
        order: int,
        end_ids: IdArray,
        grammar: GrammarState | None = None,
        parked_kv: bytes | None = None,
        has_reported: bool = False,
    ) -> "Resident":
        """A sequence that already has `output` and not yet a slot."""
        has_penalties = spec.sampling.has_penalties
        return cls(
            spec=spec,
            order=order,
            known=[*spec.prompt_tokens, *output],
            history=TokenHistory(spec.prompt_tokens, output) if has_penalties else None,
            banned_ids=end_ids if spec.ignore_eos else None,
            grammar=grammar,
            parked_kv=parked_kv,
            has_reported=has_reported,
        )

    @property
    def prompt_count(self) -> int:
        return len(self.spec.prompt_tokens)

    @property
    def output_count(self) -> int:
        return len(self.known) - self.prompt_count

    @property
    def computed(self) -> int:
        """Positions whose KV is there."""
        return len(self.slot.tokens) if self.slot is not None else 0

    @property
    def left(self) -> int:
        """Known tokens that still have to be computed; 1 while decoding."""
        return len(self.known) - self.computed

    @property
    def is_decoding(self) -> bool:
        """True when one more token completes what is known and the prompt is behind us."""
        return self.slot is not None and self.left == 1 and self.output_count > 0

    @property
    def is_in_prompt(self) -> bool:
        return self.computed < self.prompt_count

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.spec.prompt_logprobs and not self.has_reported

    def draw(self) -> Draw:
        """What decides the next token beside the logits."""
        allowed = None if self.grammar is None else self.grammar.allowed()
        return Draw(self.spec.sampling, self.output_count, self.history, self.banned_ids, allowed)

    def accept(
        self, choice: Choice, *, is_end: bool, window_tokens: int
    ) -> tuple[SequenceOutput, bool]:
        """Add the chosen token; the output to report, and whether it is the last."""
        first_index = self.output_count
        if is_end and not self.spec.ignore_eos:
            return self.output(first_index, [], FinishReason.END), True
        self.known.append(choice.token_id)
        if self.history is not None:
            self.history.add(choice.token_id)
        if self.grammar is not None:
            self.grammar.accept(choice.token_id)
        finish = self.bound_reached(window_tokens)
        logprobs = None if choice.logprob is None else [choice.logprob]
        output = self.output(first_index, [choice.token_id], finish, logprobs)
        return output, finish is not None

    def bound_reached(self, window_tokens: int) -> FinishReason | None:
        """Why no further token may be added."""
        if self.grammar is not None and self.grammar.is_over:
            return FinishReason.END
        if self.output_count >= self.spec.max_output_tokens:
            return FinishReason.LENGTH
        if len(self.known) >= window_tokens:
            return FinishReason.WINDOW
        return None

    def output(
        self,
        first_index: int,
        token_ids: list[int],
        finish: FinishReason | None,
        logprobs: list[LogprobEntry] | None = None,
    ) -> SequenceOutput:
        """What this step gave; cached tokens and prompt log-probabilities go with the first."""
        is_first, self.has_reported = not self.has_reported, True
        wants_prompt = is_first and self.spec.prompt_logprobs
        if logprobs is None and self.spec.sampling.logprobs_count is not None:
            logprobs = []
        return SequenceOutput(
            sequence_id=self.spec.sequence_id,
            first_index=first_index,
            token_ids=token_ids,
            logprobs=logprobs,
            finish=finish,
            cached_tokens=self.cached_tokens if is_first else 0,
            prompt_logprobs=self.prompt_logprobs if wants_prompt else None,
        )

    def failure(self, message: str) -> SequenceOutput:
        """The last output of a sequence that broke."""
        return SequenceOutput(self.spec.sequence_id, self.output_count, [], error=message)


def unknown_tokens(tokens: list[int], vocab_size: int) -> bool:
    """True when some id is outside the vocabulary."""
    ids = np.asarray(tokens, np.int64)
    return bool(len(ids)) and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size)
