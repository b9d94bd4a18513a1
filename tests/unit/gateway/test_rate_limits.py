"""Does a client see its own limits, in the words of its wire format, and only those it has?"""

import pytest

from mantle.admission.port import RateLimit, RateLimits
from mantle.core.errors import BeyondQuota, ConcurrencyExceeded, QuotaExceeded
from mantle.gateway.rate_headers import go_duration, rfc3339

LIMITS = RateLimits(
    requests=RateLimit(4, 3, 0.0),
    input_tokens=RateLimit(1_000, 900, 7_000.0),
    output_tokens=RateLimit(500, 100, 60_500.0),
)


def limits_in(reply):
    return {name: value for name, value in reply.headers.items() if "ratelimit" in name}


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(0, "0s"), (0.2, "1ms"), (12, "12ms"), (1_001, "2s"), (60_000, "1m0s"), (360_000, "6m0s")],
)
def test_reset_is_a_go_duration(span_ms, text):
    assert go_duration(span_ms) == text


def test_reset_is_a_time_that_is_not_too_early():
    assert rfc3339(1_800_000_000.1) == "2027-01-15T08:00:01Z"


async def test_openai_reply_names_the_scarcest_tokens(gateway):
    gateway.admission.rate_limits = LIMITS
    assert limits_in(await gateway.chat()) == {
        "x-ratelimit-limit-requests": "4",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "0s",
        "x-ratelimit-limit-tokens": "500",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "1m1s",
    }


async def test_anthropic_reply_names_each_limit(gateway):
    gateway.admission.rate_limits = LIMITS
    shown = limits_in(await gateway.messages())
    assert shown.pop("anthropic-ratelimit-unified-status") == "allowed"
    assert len(shown) == 12
    assert shown["anthropic-ratelimit-input-tokens-remaining"] == "900"
    assert shown["anthropic-ratelimit-tokens-limit"] == "500"
    assert shown["anthropic-ratelimit-output-tokens-reset"].endswith("Z")


async def test_stream_starts_with_the_limits(gateway):
    gateway.admission.rate_limits = LIMITS
    assert limits_in(await gateway.chat(stream=True))["x-ratelimit-limit-requests"] == "4"


@pytest.mark.parametrize("ask", ["chat", "messages"])
async def test_limits_that_do_not_exist_have_no_header(gateway, ask):
    gateway.admission.rate_limits = RateLimits(RateLimit(4, 3, 0.0), None, None)
    names = limits_in(await getattr(gateway, ask)())
    assert not [name for name in names if "token" in name]
    gateway.admission.rate_limits = None
    assert limits_in(await getattr(gateway, ask)()) == {}


async def test_spent_quota_says_when_to_come_back(gateway):
    gateway.admission.rate_limits = LIMITS
    gateway.admission.refusal = QuotaExceeded("spent", retry_after_ms=12_000)
    reply = await gateway.chat()
    assert reply.status == 429
    assert reply.json()["error"]["type"] == "tokens"
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"
    assert 12 <= int(reply.headers["retry-after"]) <= 16
    assert reply.headers["x-ratelimit-remaining-tokens"] == "100"
    reply = await gateway.messages()
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert limits_in(reply)["anthropic-ratelimit-unified-status"] == "rejected"
    assert "anthropic-ratelimit-tokens-limit" in reply.headers


async def test_too_many_at_once_is_a_limit_of_requests(gateway):
    gateway.admission.refusal = ConcurrencyExceeded("busy", retry_after_ms=1_000)
    reply = await gateway.chat()
    assert reply.status == 429
    assert reply.json()["error"]["type"] == "requests"


async def test_request_that_will_never_fit_is_not_retried(gateway):
    gateway.admission.refusal = BeyondQuota("too large")
    for reply in (await gateway.chat(), await gateway.messages()):
        assert reply.status == 429
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after" not in reply.headers
    assert (await gateway.chat()).json()["error"]["code"] == "insufficient_quota"
