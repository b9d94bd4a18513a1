"""Whose word counts? A fencing token: records of an older epoch are refused."""

from typing import NewType

Epoch = NewType("Epoch", int)

FIRST_EPOCH = Epoch(1)


def next_epoch(epoch: Epoch) -> Epoch:
    """The epoch of the attempt after this one."""
    return Epoch(epoch + 1)
