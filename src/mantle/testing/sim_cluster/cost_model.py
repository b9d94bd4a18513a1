"""How long does an accelerator take? The paper engine's speeds, nothing else.

What it leaves out: a decode step does not grow with the context, chunks of a prefill are not
seen apart, and the host's own work costs nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostModel:
    """Speeds of one replica and of its machine.

    A decode step takes `step_ms + step_ms_a_sequence × sequences`, times `prefill_step_factor`
    while a prompt is being prefilled beside it.
    """

    prefill_tokens_per_s: float = 10_000.0
    step_ms: float = 10.0
    step_ms_a_sequence: float = 0.25
    prefill_step_factor: float = 1.5
    park_ms: float = 5.0
    resume_ms: float = 5.0
    load_gb_per_s: float = 2.0

    def decode_step_ms(self, sequences: int, *, beside_prefill: bool) -> float:
        """One step that gives each of so many sequences one token."""
        step_ms = self.step_ms + self.step_ms_a_sequence * sequences
        return step_ms * self.prefill_step_factor if beside_prefill else step_ms

    def prefill_ms(self, tokens: int) -> float:
        return tokens * 1e3 / self.prefill_tokens_per_s

    def load_ms(self, size_bytes: int) -> float:
        return size_bytes / (self.load_gb_per_s * 1e6)
