"""How much of a per-minute limit is taken? What was used in the last minute, and what is held.

Invariant: a call of `use` never lets more than was held through, so that in every window of
`QUOTA_WINDOW_MS` the tokens used stay at or below the limit whenever holds were made by
`free_tokens`. A sliding window, not a token bucket: a full bucket plus its refill lets nearly
twice the limit through within one minute, a window never does. Used tokens are kept in steps of
`QUOTA_TICK_MS`, forgotten when the *last* moment of the step is a minute old: O(1) a call, never
too generous, at most one step too strict.
"""

from collections import deque

from mantle.core.limits import QUOTA_HELD_RETRY_MS, QUOTA_TICK_MS, QUOTA_WINDOW_MS


class TokenWindow:
    """One limit's tokens. Time is in milliseconds of the injected clock and never goes back."""

    __slots__ = ("_steps", "_used", "held")

    def __init__(self) -> None:
        self.held = 0
        self._steps: deque[list[int]] = deque()  # [step index, tokens], oldest first
        self._used = 0

    def free_tokens(self, limit: int, now_ms: float) -> int:
        """What of `limit` is neither used nor held; negative when the limit was lowered."""
        return limit - self.taken_tokens(now_ms)

    def taken_tokens(self, now_ms: float) -> int:
        self._forget(now_ms)
        return self._used + self.held

    def hold(self, tokens: int) -> None:
        self.held += tokens

    def release(self, tokens: int) -> None:
        """Give back what was held and not used."""
        assert 0 <= tokens <= self.held, "more was given back than was held"
        self.held -= tokens

    def use(self, tokens: int, now_ms: float) -> None:
        """Turn held tokens into used ones, as of now."""
        self.release(tokens)
        if not tokens:
            return
        step = int(now_ms // QUOTA_TICK_MS)
        if self._steps and self._steps[-1][0] == step:
            self._steps[-1][1] += tokens
        else:
            self._steps.append([step, tokens])
        self._used += tokens

    def wait_ms(self, tokens: int, limit: int, now_ms: float) -> float:
        """When `tokens` of `limit` should be free, at the latest if requests under way end."""
        missing = tokens - self.free_tokens(limit, now_ms)
        if missing <= 0:
            return 0.0
        for step, used in self._steps:
            missing -= used
            if missing <= 0:
                return _forgotten_ms(step) - now_ms
        return float(QUOTA_HELD_RETRY_MS)

    def reset_ms(self, now_ms: float) -> float:
        """When all that was used will be forgotten; held tokens may add to it."""
        self._forget(now_ms)
        if not self._steps:
            return float(QUOTA_HELD_RETRY_MS) if self.held else 0.0
        return _forgotten_ms(self._steps[-1][0]) - now_ms

    def _forget(self, now_ms: float) -> None:
        while self._steps and _forgotten_ms(self._steps[0][0]) <= now_ms:
            self._used -= self._steps.popleft()[1]


def _forgotten_ms(step: int) -> float:
    return float((step + 1) * QUOTA_TICK_MS + QUOTA_WINDOW_MS)
