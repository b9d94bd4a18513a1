"""How much may one template render cost? Time, characters, and the size of what it builds.

Invariant: every operation that could amplify its input is refused before it runs, so one call into
C is bounded and the deadline is looked at between any two of them.
"""

import re
import time
from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeVar

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from mantle.core.limits import (
    TEMPLATE_COUNT_MAX,
    TEMPLATE_INTEGER_BITS_MAX,
    TEMPLATE_NODES_MAX,
    TEMPLATE_SCRATCH_FACTOR,
)

_WIDE_FIELD = re.compile(r"\d{5,}|\*|\{[^{}]*\{")  # a huge or computed width in a format string
_TICK_NODES = 4096

T = TypeVar("T")


class BudgetExceeded(SecurityError):
    """The render took too long, or built too much."""


def refuse(reason: str) -> NoReturn:
    raise BudgetExceeded(reason)


class RenderBudget:
    """What is left to one render. Used by one thread."""

    __slots__ = ("_chars_left", "_deadline_s", "chars_max")

    def __init__(self, *, seconds: float, chars_max: int) -> None:
        self._deadline_s = time.monotonic() + seconds
        self._chars_left = chars_max * TEMPLATE_SCRATCH_FACTOR
        self.chars_max = chars_max

    def tick(self) -> None:
        if time.monotonic() > self._deadline_s:
            refuse("out of time")

    def charge(self, value: T) -> T:
        """Count a value that was just made; returns it, or refuses."""
        if isinstance(value, str | bytes):
            if len(value) > self.chars_max:
                refuse("a text is too long")
            self._chars_left -= len(value)
            if self._chars_left < 0:
                refuse("too much text was built")
        elif isinstance(value, int):
            if value.bit_length() > TEMPLATE_INTEGER_BITS_MAX:
                refuse("a number is too large")
        elif isinstance(value, list | tuple | dict | set | frozenset | Namespace):
            self._weigh(value)
        return value

    def _weigh(self, root: object) -> int:
        """Size of `root` as if it were printed: shared parts count each time they appear."""
        nodes, chars, pending = 0, 0, [root]
        while pending:
            value = pending.pop()
            nodes += 1
            if isinstance(value, str | bytes):
                chars += len(value)
            else:
                pending.extend(_children(value))
            if nodes + len(pending) > TEMPLATE_NODES_MAX or chars > self.chars_max:
                refuse("a nested value is too large")
            if nodes % _TICK_NODES == 0:
                self.tick()
        return nodes + chars

    # --- checks before an operation runs --------------------------------------------------------
    def before_multiply(self, left: object, right: object) -> None:
        for text, count in ((left, right), (right, left)):
            if isinstance(text, str | bytes | list | tuple) and isinstance(count, int):
                if len(text) * count > (self.chars_max if _is_text(text) else TEMPLATE_NODES_MAX):
                    refuse("a repetition is too long")
                return
        if not (isinstance(left, int) and isinstance(right, int)):
            return
        if left.bit_length() + right.bit_length() > TEMPLATE_INTEGER_BITS_MAX:
            refuse("a number is too large")

    def before_power(self, left: object, right: object) -> None:
        if not (isinstance(left, int) and isinstance(right, int)):
            return
        if left.bit_length() * abs(right) > TEMPLATE_INTEGER_BITS_MAX:
            refuse("a number is too large")

    def before_format(self, pattern: str | bytes, values: object) -> None:
        text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
        if _WIDE_FIELD.search(text.replace("%%", "")):
            refuse("a format is too wide")
        if (text.count("%") + text.count("{")) * self._weigh(values) > self.chars_max:
            refuse("a format writes too much")

    def before_split(self, text: str | bytes, separator: object) -> None:
        if len(text) <= TEMPLATE_NODES_MAX:
            return
        if not isinstance(separator, str) or not isinstance(text, str):
            refuse("a text is too long to split at white space")
        if text.count(separator) > TEMPLATE_NODES_MAX:
            refuse("a split gives too many parts")

    def joined(self, separator: str, parts: Iterable[object]) -> str:
        """`separator.join(map(str, parts))`, never longer than what may be written."""
        texts, chars = [], 0
        for part in parts:
            text = part if isinstance(part, str) else str(self.charge(part))
            texts.append(text)
            chars += len(text) + len(separator)
            if chars > self.chars_max + len(separator) or len(texts) > TEMPLATE_NODES_MAX:
                refuse("a join is too long")
            if len(texts) % _TICK_NODES == 0:
                self.tick()
        return separator.join(texts)

    def before_replace(self, text: str, old: object, new: object) -> None:
        if not (isinstance(old, str) and isinstance(new, str)):
            return  # the call itself will fail
        if len(text) + text.count(old) * len(new) > self.chars_max:
            refuse("a replacement is too long")

    def before_indent(self, text: str, width: object) -> None:
        widest = len(width) if isinstance(width, str) else width
        if isinstance(widest, int) and (len(text.splitlines()) + 1) * widest > self.chars_max:
            refuse("an indentation is too long")

    def check_counts(self, values: Iterable[object]) -> None:
        for value in values:
            if isinstance(value, int) and abs(value) > TEMPLATE_COUNT_MAX:
                refuse("a count is too large")


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes)


def _children(value: object) -> list[object]:
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    return []
