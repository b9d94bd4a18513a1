"""What does the dispatcher tell the metrics? A port, so that no library is needed here."""

from typing import Protocol

from mantle.core.ids import ModelId


class DispatchObserver(Protocol):
    """Called on the event loop; must be cheap and never raise."""

    def engine_step(
        self, model_id: ModelId, step_ms: float, prefill_tokens: int, decode_tokens: int
    ) -> None: ...


class SilentObserver:
    """Sees nothing."""

    def engine_step(
        self, model_id: ModelId, step_ms: float, prefill_tokens: int, decode_tokens: int
    ) -> None:
        return None
