"""Which tokens may come next under a grammar? One state a sequence, derived from its output alone.

Invariant: the state after n tokens is a function of the grammar and those n tokens; nothing of it
is stored, so a parked or resumed sequence builds it again by replay.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from mantle.core.errors import EngineFailed
from mantle.text.structured import parser_limits

Allowed = NDArray[np.bool_]

_KEPT: Final = 64
"""Compiled grammars that are remembered: an agent sends the same schema with every turn."""


class GrammarState:
    """Where one sequence stands in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._words = np.zeros((vocab_size + 31) // 32, np.int32)

    @property
    def is_over(self) -> bool:
        """Nothing may follow any more but the end."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self) -> Allowed:
        """Per vocabulary id: may it come next? The end counts where the text may end here.

        Nothing is allowed once the grammar has gone over its limits.
        """
        if self._matcher.is_error():
            return np.zeros(self._vocab_size, np.bool_)
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[: self._vocab_size].view(np.bool_)

    def accept(self, token_id: int) -> bool:
        """Take the next token; False when the grammar does not allow it."""
        return bool(self._matcher.consume_token(token_id))


class GrammarEngine:
    """Grammars over one model's vocabulary. `tokenizer_of` is called at the first use (it takes a
    third of a second). Single-threaded.
    """

    def __init__(self, tokenizer_of: Callable[[], LLTokenizer]) -> None:
        self._tokenizer_of = tokenizer_of
        self._tokenizer: LLTokenizer | None = None
        self._compiled: dict[str, LLMatcher] = {}

    def start(self, source: str, output: Sequence[int]) -> GrammarState:
        """The state after `output`. Raises `EngineFailed`."""
        if self._tokenizer is None:
            self._tokenizer = self._tokenizer_of()
        matcher = self._compile(source, self._tokenizer).deep_copy()
        state = GrammarState(matcher, self._tokenizer.vocab_size)
        if not all(map(state.accept, output)):
            raise EngineFailed("the output so far does not fit its grammar")
        return state

    def _compile(self, source: str, tokenizer: LLTokenizer) -> LLMatcher:
        matcher = self._compiled.pop(source, None)
        if matcher is None:
            matcher = LLMatcher(tokenizer, source, log_level=0, limits=parser_limits())
            if matcher.is_error():
                raise EngineFailed("the grammar does not compile for this model")
        self._compiled[source] = matcher  # the newest is last
        if len(self._compiled) > _KEPT:
            del self._compiled[next(iter(self._compiled))]
        return matcher
