"""What must hold whatever happens? One error for all that was broken."""


class InvariantBroken(AssertionError):
    """The scheduler (or the simulator) broke a promise; the text says which."""


def require(holds: bool, promise_broken: str) -> None:
    """Raise `InvariantBroken` with this text unless it holds."""
    if not holds:
        raise InvariantBroken(promise_broken)
