"""How much may one step do? Prefill is cut so that a step stays short, and time lost is bounded.

Prefill and decode costs are learned from the steps themselves. Invariant: prefill gets its share
(at least as long as decode takes, and `CHUNK_TOKENS_MIN` tokens), or slots would sit undecoded;
at most `LOST_SHARE_MAX` of the time goes into steps that were interrupted for an urgent sequence.
"""

import math
from dataclasses import dataclass
from typing import Final

from mantle.engine.port import EngineSettings, StepBudget, StepReport

CHUNK_TOKENS_MIN: Final = 16
LOST_SHARE_MAX: Final = 0.04
LOST_WINDOW_MS: Final = 10_000.0
SMOOTHING: Final = 0.2
CONTESTED_MS: Final = 30_000.0
"""So long after an urgent sequence steps are kept short; without one they need not be."""
UNCONTESTED_TARGETS: Final = 4.0
"""Targets that a step may take then: larger chunks of prefill cost less a token."""


@dataclass(slots=True)
class StepCosts:
    """Milliseconds, learned: one prompt token, and one step that only decodes."""

    prefill_token_ms: float | None = None
    decode_step_ms: float = 0.0

    def learn(self, report: StepReport) -> None:
        if report.interrupted:
            return
        if report.prefill_tokens == 0:
            if report.decode_tokens:
                self.decode_step_ms = _mean(self.decode_step_ms or None, report.step_ms)
        elif report.prefill_tokens >= CHUNK_TOKENS_MIN:
            beyond_decode_ms = report.step_ms - (self.decode_step_ms if report.decode_tokens else 0)
            token_ms = max(beyond_decode_ms, 0.1 * report.step_ms) / report.prefill_tokens
            self.prefill_token_ms = _mean(self.prefill_token_ms, token_ms)


class StepPlan:
    """The budget of each step of one replica, and whether a step may be interrupted."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.costs = StepCosts()
        self._lost_ms = 0.0
        self._seen_ms: float | None = None
        self._urgent_ms = -math.inf
        self._target_ms = settings.step_ms_target

    def budget(self, *, something_decodes: bool, urgent_waits: bool, now_ms: float) -> StepBudget:
        """An urgent prefill has the step to itself; else decode, and a chunk within the target."""
        if urgent_waits:
            self._urgent_ms = now_ms
        contested = now_ms - self._urgent_ms < CONTESTED_MS
        self._target_ms = self._settings.step_ms_target * (1 if contested else UNCONTESTED_TARGETS)
        if urgent_waits:
            return StepBudget(self._chunk_max(self._settings.batch_tokens, 0.0), urgent_only=True)
        if something_decodes:
            chunk = self._chunk_max(self._settings.prefill_chunk_tokens, self.costs.decode_step_ms)
        else:
            chunk = self._chunk_max(self._settings.batch_tokens, 0.0)
        return StepBudget(chunk)

    def may_interrupt(self, busy_ms: float, now_ms: float) -> bool:
        """True when throwing away a step that has run for `busy_ms` stays within the bound."""
        self._decay(now_ms)
        return self._lost_ms + busy_ms <= LOST_SHARE_MAX * LOST_WINDOW_MS

    def learn(self, report: StepReport, now_ms: float) -> None:
        self.costs.learn(report)
        if report.interrupted:
            self._decay(now_ms)
            self._lost_ms += report.step_ms

    def _chunk_max(self, tokens_max: int, decode_ms: float) -> int:
        """Tokens that fit the target, or that take as long as decode where that fills it."""
        token_ms = self.costs.prefill_token_ms
        if not token_ms or self._settings.step_ms_target <= 0:
            return tokens_max
        room_ms = max(self._target_ms - decode_ms, decode_ms)
        return max(CHUNK_TOKENS_MIN, min(tokens_max, int(room_ms / token_ms)))

    def _decay(self, now_ms: float) -> None:
        elapsed_ms = 0.0 if self._seen_ms is None else max(0.0, now_ms - self._seen_ms)
        self._seen_ms = now_ms
        self._lost_ms *= math.exp(-elapsed_ms / LOST_WINDOW_MS)


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + SMOOTHING * (value - mean)
