"""How does client text stay plain text when the template concatenates everything?

Before rendering, the first character of each special-token text that a client wrote is swapped for
a stand-in of the same length; after rendering, whatever still reads as a special token is the
template's own. Stand-ins are lone surrogates, which valid Unicode text cannot contain.
Invariant: texts without special-token text pass unchanged, and unmasking restores the rest.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

_FIRST_STAND_IN: Final = 0xD800
_STAND_INS_MAX: Final = 2048


@dataclass(frozen=True, slots=True, repr=False)
class Piece:
    """A stretch of a rendered prompt: one special token's text, or plain text between two."""

    text: str
    is_special: bool

    def __repr__(self) -> str:
        return f"Piece({len(self.text)} characters, special={self.is_special})"


class SpecialGuard:
    """Knows one model's special-token texts. Immutable, hence thread-safe."""

    def __init__(self, special_texts: Iterable[str]) -> None:
        texts = sorted({text for text in special_texts if text}, key=len, reverse=True)
        self._first_chars = sorted({text[0] for text in texts})
        assert len(self._first_chars) <= _STAND_INS_MAX
        self._stand_in = {c: chr(_FIRST_STAND_IN + i) for i, c in enumerate(self._first_chars)}
        self._restore = {ord(stand_in): c for c, stand_in in self._stand_in.items()}
        either = "|".join(map(re.escape, texts)) or r"(?!)"
        self._special = re.compile(either)
        self._special_at_each_start = re.compile(f"(?=(?:{either}))")
        self._prefixes = {text[:n] for text in texts for n in range(1, len(text))}
        self._tail_chars_max = max(map(len, self._prefixes), default=0)

    def concerns(self, value: Any) -> bool:
        """True when a text in `value` could be read as (or as the start of) a special token."""
        if isinstance(value, str):
            return self._concerns_text(value)
        if isinstance(value, dict):
            return any(self.concerns(part) for pair in value.items() for part in pair)
        if isinstance(value, list | tuple):
            return any(self.concerns(part) for part in value)
        return False

    def mask(self, value: Any) -> Any:
        """A copy of `value` in which no text reads as a special token."""
        if isinstance(value, str):
            return self._mask_text(value)
        if isinstance(value, dict):
            return {self.mask(key): self.mask(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask(part) for part in value]
        return value

    def unmask(self, text: str) -> str:
        if any(stand_in in text for stand_in in self._stand_in.values()):
            return text.translate(self._restore)
        return text

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """A rendered (masked) prompt, cut at the template's own special tokens and unmasked."""
        cursor = 0
        for match in self._special.finditer(rendered):
            if match.start() > cursor:
                yield Piece(self.unmask(rendered[cursor : match.start()]), is_special=False)
            yield Piece(match.group(), is_special=True)
            cursor = match.end()
        if cursor < len(rendered):
            yield Piece(self.unmask(rendered[cursor:]), is_special=False)

    def _concerns_text(self, text: str) -> bool:
        if not any(c in text for c in self._first_chars):
            return False
        return self._special.search(text) is not None or bool(self._tail_starts(text))

    def _tail_starts(self, text: str) -> list[int]:
        """Where a special token begins that the text after this one could complete."""
        earliest = max(0, len(text) - self._tail_chars_max)
        return [i for i in range(earliest, len(text)) if text[i:] in self._prefixes]

    def _mask_text(self, text: str) -> str:
        if not self._concerns_text(text):
            return text
        starts = {match.start() for match in self._special_at_each_start.finditer(text)}
        starts.update(self._tail_starts(text))
        return "".join(self._stand_in[c] if i in starts else c for i, c in enumerate(text))
