"""What can one ready replica hold, and what is taken of it?

Invariant: `kv_tokens_taken` is the sum over `running`; both are kept by `Residents`.
"""

from dataclasses import dataclass, field

from mantle.core.ids import ModelId, ReplicaId, RequestId


@dataclass(slots=True)
class ReplicaCapacity:
    """What one ready replica can hold. `exact`: what it resumes goes on as if undisturbed."""

    replica_id: ReplicaId
    model_id: ModelId
    slots: int
    kv_tokens: int
    window_tokens: int
    exact: bool = False
    running: set[RequestId] = field(default_factory=set)
    kv_tokens_taken: int = 0
    draining: bool = False

    @property
    def slots_free(self) -> int:
        return 0 if self.draining else self.slots - len(self.running)

    @property
    def kv_tokens_free(self) -> int:
        return self.kv_tokens - self.kv_tokens_taken

    def kv_need(self, tokens: int) -> int:
        """KV tokens that a sequence of so many tokens takes here."""
        return min(tokens, self.window_tokens)

    def fits(self, kv_tokens: int) -> bool:
        return self.slots_free > 0 and kv_tokens <= self.kv_tokens_free
