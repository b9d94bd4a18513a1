"""Has a stop string of the client appeared? Text is released once it cannot be part of one.

Invariant: however the text is cut into pieces, the released text and the match are the same. The
match that is complete first wins; of several that end together, the longest.
"""

from collections.abc import Sequence


class StopStrings:
    """Watches one request's text. Nothing more comes out after a match."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._held = ""
        self._matched: str | None = None

    def __repr__(self) -> str:
        return f"StopStrings({len(self._stops)} stops, {len(self._held)} characters held)"

    def feed(self, text: str) -> tuple[str, str | None]:
        """(text that may be shown now, the stop string that ended it or None)."""
        if self._matched is not None:
            return "", self._matched
        if not self._stops:
            return text, None
        seen = self._held + text
        start = self._match(seen)
        if start is not None:
            self._held = ""
            return seen[:start], self._matched
        held_from = min(_partial_start(seen, stop) for stop in self._stops)
        self._held = seen[held_from:]
        return seen[:held_from], None

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _match(self, seen: str) -> int | None:
        """Start of the first stop string to be complete in `seen`; remembers which."""
        best_start, best_end = -1, len(seen) + 1
        for stop in self._stops:  # longest first, so `<` keeps the longest of equal ends
            start = seen.find(stop)
            if start >= 0 and start + len(stop) < best_end:
                best_start, best_end, self._matched = start, start + len(stop), stop
        return best_start if self._matched is not None else None


def _partial_start(seen: str, stop: str) -> int:
    """Where the longest suffix of `seen` begins that `stop` starts with; its length if none."""
    start = seen.find(stop[0], max(0, len(seen) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(seen[start:]):
            return start
        start = seen.find(stop[0], start + 1)
    return len(seen)
