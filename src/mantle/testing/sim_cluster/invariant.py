"""What must hold whatever happens? One error for all that was broken."""

from typing import NoReturn


class InvariantBroken(AssertionError):
    """The scheduler (or the simulator) broke a promise; the text says which."""


def require(holds: bool, promise_broken: str) -> None:
    """Raise `InvariantBroken` with this text unless it holds."""
    if not holds:
        broken(promise_broken)


def broken(promise: str) -> NoReturn:
    """Raise `InvariantBroken`; where it is checked often, the text is made only then."""
    raise InvariantBroken(promise)
