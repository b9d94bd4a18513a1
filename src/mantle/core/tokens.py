"""How are tokens counted? Token ids, positions in a request's output, and what a request used."""

from dataclasses import dataclass
from typing import NewType

TokenIds = tuple[int, ...]

TokenCursor = NewType("TokenCursor", int)
"""How many output tokens of a request are already durable and shown."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens one request used; `cached_tokens` of the input were not computed again."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def uncached_tokens(self) -> int:
        """Input tokens that had to be computed."""
        return self.input_tokens - self.cached_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one sampled (or prompt) token and of the likeliest ones beside it.

    `logprob` is None only for the first prompt token, which nothing predicts. `top` is sorted,
    likeliest first. Values are natural logarithms of the model's own distribution (temperature 1,
    before penalties and truncation), floored at `limits.LOGPROB_FLOOR`.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
