"""What does a client see when something goes wrong? One table from error classes to both envelopes.

Invariant: every error has a row (by class, nearest ancestor first); nothing of an unexpected
exception ever reaches the client but the request id.
"""

import math
from dataclasses import dataclass

import msgspec

from mantle.core import errors, limits


@dataclass(frozen=True, slots=True)
class Row:
    """How one error class looks on the wire."""

    status: int
    openai_type: str
    openai_code: str | None
    anthropic_type: str
    anthropic_status: int | None = None  # where it differs

    def status_for(self, *, anthropic: bool) -> int:
        if anthropic and self.anthropic_status is not None:
            return self.anthropic_status
        return self.status


_INVALID = "invalid_request_error"
_OVERLOADED = "overloaded_error"

_REJECTED = (b"anthropic-ratelimit-unified-status", b"rejected")

INTERNAL = Row(500, "server_error", "internal_error", "api_error")

TABLE: dict[type[errors.MantleError], Row] = {
    errors.InvalidRequest: Row(400, _INVALID, None, _INVALID),
    errors.Unauthenticated: Row(401, _INVALID, "invalid_api_key", "authentication_error"),
    errors.PermissionDenied: Row(403, "permission_error", "model_not_allowed", "permission_error"),
    errors.UnknownModel: Row(404, _INVALID, "model_not_found", "not_found_error"),
    errors.NotFound: Row(404, _INVALID, "not_found", "not_found_error"),
    errors.Conflict: Row(409, _INVALID, "conflict", "conflict_error"),
    errors.MethodNotAllowed: Row(405, _INVALID, "method_not_allowed", _INVALID),
    errors.BodyTooLarge: Row(413, _INVALID, "request_too_large", "request_too_large"),
    errors.QueueFull: Row(429, "requests", "rate_limit_exceeded", "rate_limit_error"),
    errors.QuotaExceeded: Row(429, "tokens", "rate_limit_exceeded", "rate_limit_error"),
    errors.ConcurrencyExceeded: Row(429, "requests", "rate_limit_exceeded", "rate_limit_error"),
    errors.BeyondQuota: Row(429, "insufficient_quota", "insufficient_quota", "rate_limit_error"),
    errors.Unavailable: Row(503, "server_error", "engine_overloaded", _OVERLOADED, 529),
    errors.Rejected: Row(400, _INVALID, None, _INVALID),
    errors.Cancelled: Row(499, _INVALID, "client_closed_request", _INVALID),
    errors.DeadlineExceeded: Row(408, "timeout", "deadline_exceeded", "timeout_error"),
    errors.WaitExceeded: Row(503, "server_error", "engine_overloaded", _OVERLOADED, 529),
    errors.Dropped: Row(503, "server_error", "engine_overloaded", _OVERLOADED, 529),
    errors.LoadFailed: Row(503, "server_error", "model_loading", _OVERLOADED, 529),
    errors.ReplicaLost: Row(503, "server_error", "replica_lost", "api_error"),
    errors.EngineFailed: Row(503, "server_error", "engine_failed", "api_error"),
    errors.AttemptFailed: Row(503, "server_error", "engine_failed", "api_error"),
    errors.JournalFault: Row(503, "server_error", "journal_unavailable", "api_error"),
    errors.MantleError: INTERNAL,
}


def row_of(error: Exception) -> Row:
    """The row of the nearest ancestor; `INTERNAL` for whatever is not ours."""
    for ancestor in type(error).__mro__:
        row = TABLE.get(ancestor)
        if row is not None:
            return row
    return INTERNAL


def message_of(error: Exception, request_id: str) -> str:
    """Text for the client; generic for exceptions that are not ours."""
    if not isinstance(error, errors.MantleError):
        return f"internal error; quote request id {request_id} when you report it"
    return f"{error.message} ({error.hint})" if error.hint else error.message


def openai_envelope(error: Exception, request_id: str) -> bytes:
    """`{"error":{message,type,param,code}}`, all four keys always."""
    row = row_of(error)
    param: str | None = None
    code = row.openai_code
    if isinstance(error, errors.InvalidRequest):
        param, code = error.param, error.code or code
    elif isinstance(error, errors.PermissionDenied):
        code = error.code
    elif isinstance(error, errors.UnknownModel):
        param = "model"
    return msgspec.json.encode(
        {
            "error": {
                "message": message_of(error, request_id),
                "type": row.openai_type,
                "param": param,
                "code": code,
            }
        }
    )


def anthropic_envelope(error: Exception, request_id: str) -> bytes:
    """`{"type":"error","error":{type,message},"request_id"}`."""
    message = message_of(error, request_id)
    if isinstance(error, errors.InvalidRequest) and _should_lead_with_param(error):
        message = f"{error.param}: {message}"
    return msgspec.json.encode(
        {
            "type": "error",
            "error": {"type": row_of(error).anthropic_type, "message": message},
            "request_id": request_id,
        }
    )


def _should_lead_with_param(error: errors.InvalidRequest) -> bool:
    """Clients match "prompt is too long: …" from its start: nothing may stand before it."""
    return (
        not isinstance(error, errors.PromptTooLong)
        and error.param is not None
        and error.param not in error.message
    )


def retry_after_s(error: Exception, jitter: float) -> int | None:
    """Whole seconds within the limits, `jitter` in [0, 1) spreads clients; None: do not retry."""
    if not isinstance(error, errors.MantleError) or not error.retryable:
        return None
    wait_ms = float(getattr(error, "retry_after_ms", limits.RETRY_AFTER_S_MIN * 1000))
    seconds = math.ceil(wait_ms / 1000 * (1 + jitter / 4))
    return max(limits.RETRY_AFTER_S_MIN, min(limits.RETRY_AFTER_S_MAX, seconds))


def error_headers(error: Exception, *, anthropic: bool, jitter: float) -> list[tuple[bytes, bytes]]:
    """`Retry-After` and what the SDKs read beside it."""
    if isinstance(error, errors.BeyondQuota | errors.Conflict):  # SDKs would retry 429 and 409
        is_limit = anthropic and row_of(error).status == 429
        return [(b"x-should-retry", b"false"), *([_REJECTED] if is_limit else [])]
    seconds = retry_after_s(error, jitter)
    if seconds is None:
        return []
    headers = [(b"retry-after", str(seconds).encode()), (b"x-should-retry", b"true")]
    if anthropic and row_of(error).status == 429:
        headers.append(_REJECTED)
    return headers
