"""What does a request cost? Token cost, the one currency of lanes, fairness and demand.

Invariant: cost depends on tokens only, never on wall time, so that a slow machine is not charged
to the tenant that happened to be on it.
"""

from dataclasses import dataclass

from mantle.core.limits import OUTPUT_MEANS_MAX


@dataclass(frozen=True, slots=True)
class CostWeights:
    """Cost of one token: uncached input and output (design §5: 1 and 2)."""

    input_token: float = 1.0
    output_token: float = 2.0

    def of_input(self, tokens: int) -> float:
        return self.input_token * tokens

    def of_output(self, tokens: int) -> float:
        return self.output_token * tokens


class OutputEstimate:
    """How many output tokens will a tenant's next request produce? An EWMA of its last ones.

    Only the estimate at dispatch depends on it; what is charged in the end is what was produced.
    """

    def __init__(
        self,
        *,
        first_guess_tokens: float = 128.0,
        smoothing: float = 0.2,
        tenants_max: int = OUTPUT_MEANS_MAX,
    ) -> None:
        self._tenants_max = tenants_max
        self._first_guess_tokens = first_guess_tokens
        self._smoothing = smoothing
        self._mean_tokens: dict[str, float] = {}  # who was learned from last is last

    def expected(self, tenant_id: str, max_output_tokens: int) -> int:
        mean = self._mean_tokens.get(tenant_id, self._first_guess_tokens)
        return max(1, min(max_output_tokens, round(mean)))

    def learn(self, tenant_id: str, output_tokens: int) -> None:
        mean = self._mean_tokens.pop(tenant_id, None)
        if mean is None:
            mean = float(output_tokens)
        self._mean_tokens[tenant_id] = mean + self._smoothing * (output_tokens - mean)
        if len(self._mean_tokens) > self._tenants_max:
            del self._mean_tokens[next(iter(self._mean_tokens))]
