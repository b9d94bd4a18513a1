"""How do a tenant's own limits look in reply headers? OpenAI's names and Anthropic's.

Invariant: a limit that does not exist has no header. `tokens` is the limit that is nearest to its
end, as Anthropic defines it; `requests` counts concurrent ones.
"""

import math
from datetime import UTC, datetime

from mantle.admission.port import RateLimit, RateLimits

Header = tuple[bytes, bytes]


def openai_headers(limits: RateLimits) -> list[Header]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; reset is a Go duration."""
    headers: list[Header] = []
    for name, limit in (("requests", limits.requests), ("tokens", _scarcest(limits))):
        if limit is not None:
            headers += [
                _header(f"x-ratelimit-limit-{name}", limit.limit),
                _header(f"x-ratelimit-remaining-{name}", limit.remaining),
                _header(f"x-ratelimit-reset-{name}", go_duration(limit.reset_ms)),
            ]
    return headers


def anthropic_headers(limits: RateLimits, *, wall_s: float) -> list[Header]:
    """`anthropic-ratelimit-{…}-{limit,remaining,reset}`; reset is a time (RFC 3339)."""
    named = {
        "requests": limits.requests,
        "tokens": _scarcest(limits),
        "input-tokens": limits.input_tokens,
        "output-tokens": limits.output_tokens,
    }
    headers: list[Header] = []
    for name, limit in named.items():
        if limit is not None:
            reset = rfc3339(wall_s + limit.reset_ms / 1_000)
            headers += [
                _header(f"anthropic-ratelimit-{name}-limit", limit.limit),
                _header(f"anthropic-ratelimit-{name}-remaining", limit.remaining),
                _header(f"anthropic-ratelimit-{name}-reset", reset),
            ]
    return headers


def go_duration(span_ms: float) -> str:
    """`0s`, `12ms`, `7s`, `1m0s`: rounded up, so that nobody comes too early."""
    if span_ms <= 0:
        return "0s"
    if span_ms < 1_000:
        return f"{math.ceil(span_ms)}ms"
    minutes, seconds = divmod(math.ceil(span_ms / 1_000), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def rfc3339(wall_s: float) -> str:
    """A time in UTC, rounded up to the second."""
    return datetime.fromtimestamp(math.ceil(wall_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _scarcest(limits: RateLimits) -> RateLimit | None:
    tokens = [limit for limit in (limits.input_tokens, limits.output_tokens) if limit is not None]
    return min(tokens, key=lambda limit: limit.remaining / max(1, limit.limit), default=None)


def _header(name: str, value: int | str) -> Header:
    return name.encode(), str(value).encode()
