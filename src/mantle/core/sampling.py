"""How is the next token chosen? The effective parameters, fixed when a request is accepted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Effective sampling parameters; together with logits and position they fix each token (law 7).

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. `logit_bias` holds
    (token id, bias added to the logit), sorted by id. `seed` is 64 bits, always set: drawn at
    random on acceptance when the client gave none. `logprobs_count` is None when log-probabilities
    are not wanted, 0 for the sampled token only, n for the n likeliest beside it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs_count: int | None = None

    @property
    def is_greedy(self) -> bool:
        """True when the likeliest token is always taken."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """True when earlier tokens change later logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )
