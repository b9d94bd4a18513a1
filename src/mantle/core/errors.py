"""What went wrong, and may the client try again? The tree splits by the phase that failed.

Every error carries three facts: `retryable`, `outcome`, `hint`. Messages are safe to show to the
client: no path, no key, no stack trace.
"""

from typing import ClassVar

from mantle.core.outcome import Outcome


class MantleError(Exception):
    """Root of all errors that a caller may see. `hint` says what to do about it."""

    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Rejected(MantleError):
    """Never queued; nothing was stored."""

    outcome = Outcome.REJECTED


class InvalidRequest(Rejected):
    """The request itself is wrong; `param` is the path of the field (`messages[0].content`)."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.code = code


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the model's context window."""

    def __init__(self, *, prompt_tokens: int, window_tokens: int, param: str = "messages") -> None:
        super().__init__(
            f"prompt is too long: {prompt_tokens} tokens > {window_tokens} maximum",
            param=param,
            code="context_length_exceeded",
            hint="shorten the prompt or use a model with a larger context window",
        )
        self.prompt_tokens = prompt_tokens
        self.window_tokens = window_tokens


class BodyTooLarge(Rejected):
    """The body is over `limits.BODY_BYTES_MAX`."""


class Unauthenticated(Rejected):
    """No API key, or one that nobody issued."""


class PermissionDenied(Rejected):
    """The key is known but may not do this; `code` says what (`model_not_allowed`…)."""

    def __init__(self, message: str, *, code: str = "model_not_allowed", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class UnknownModel(Rejected):
    """No such model in the catalogue (or none that this key may see)."""


class NotFound(Rejected):
    """No such URL or object."""


class Conflict(Rejected):
    """The change contradicts what there is (an id that is taken, something read-only)."""


class MethodNotAllowed(Rejected):
    """The URL exists, but not for this method."""


class QueueFull(Rejected):
    """The tenant's own queue is at its bound. `retry_after_ms` is when it should have room."""

    retryable = True

    def __init__(self, message: str, *, retry_after_ms: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class QuotaExceeded(QueueFull):
    """The tenant's own token quota is spent for now."""


class ConcurrencyExceeded(QuotaExceeded):
    """The tenant has as many requests under way as its quota allows."""


class BeyondQuota(Rejected):
    """This request alone asks for more than the tenant's whole quota: waiting does not help."""


class Unavailable(Rejected):
    """The whole platform cannot take this request now (loading, draining, no worker)."""

    retryable = True

    def __init__(self, message: str, *, retry_after_ms: float = 5_000.0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class Dropped(MantleError):
    """Left the queue, or its slot, before it was done."""


class Cancelled(Dropped):
    """The client went away or took the request back."""

    outcome = Outcome.CANCELLED


class DeadlineExceeded(Dropped):
    """The request's own deadline passed."""

    retryable = True
    outcome = Outcome.EXPIRED


class WaitExceeded(Dropped):
    """Waited longer in the queue than its lane allows."""

    retryable = True
    outcome = Outcome.EXPIRED

    def __init__(self, message: str, *, retry_after_ms: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class AttemptFailed(MantleError):
    """One try failed; another may succeed."""

    retryable = True


class ReplicaLost(AttemptFailed):
    """The worker died or stalled while the request was on it."""


class EngineFailed(AttemptFailed):
    """The engine refused or broke this sequence; the worker lives on."""


class LoadFailed(AttemptFailed):
    """The model's weights could not be loaded."""

    def __init__(self, message: str, *, retry_after_ms: float = 5_000.0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class JournalFault(MantleError):
    """The journal cannot promise durability: stop, do not guess."""
