"""How did a request end? Closed sets, used as metric labels and in the journal."""

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a request; set exactly once."""

    COMPLETED = "completed"
    REJECTED = "rejected"  # never queued
    CANCELLED = "cancelled"  # the client went away or took it back
    EXPIRED = "expired"  # waited past its bound or deadline
    FAILED = "failed"  # the platform could not serve it


class FinishReason(StrEnum):
    """Why a completed request's text ends where it does."""

    END = "end"  # the model ended its turn
    STOP_STRING = "stop_string"  # one of the client's stop strings appeared
    LENGTH = "length"  # the client's max tokens
    WINDOW = "window"  # the model's context window is full
