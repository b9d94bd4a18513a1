"""Who may call what, and in which envelope errors come (cases 69, 70, 74, 112; wire errors)."""

import json
import logging
from typing import Any

import pytest
from gateway_fakes import KEY, WINDOW_TOKENS, Harness, chat_body, message_body

from mantle.core import errors
from mantle.core.outcome import Outcome
from mantle.gateway import wire_errors
from mantle.gateway.routes import OPEN_ROUTES, ROUTES

OPENAI = ["/v1/chat/completions", "/v1/completions", "/v1/models", "/openai/v1/chat/completions"]
ANTHROPIC = ["/v1/messages", "/v1/messages/count_tokens", "/anthropic/v1/messages",
             "/anthropic/v1/models"]  # fmt: skip


def assert_openai(reply: Any, status: int) -> dict[str, Any]:
    assert reply.status == status
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert reply.headers["x-request-id"].startswith("req_")
    return dict(error)


def assert_anthropic(reply: Any, status: int) -> dict[str, Any]:
    assert reply.status == status
    body = reply.json()
    assert body["type"] == "error"
    assert body["request_id"] == reply.headers["request-id"]
    return dict(body["error"])


@pytest.mark.parametrize("key", [None, "sk-wrong"])
@pytest.mark.parametrize("path", [*ROUTES, "/v1/models/m", "/nope", "/anthropic/nope"])
async def test_every_route_but_the_open_ones_asks_for_a_key(
    gateway: Harness, path: str, key: str | None
) -> None:
    for method in ("GET", "POST", "DELETE"):
        reply = await gateway.call(path, {}, method=method, key=key)
        if path.startswith(("/v1/messages", "/anthropic")):
            assert assert_anthropic(reply, 401)["type"] == "authentication_error"
        else:
            assert assert_openai(reply, 401)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", list(ROUTES))
@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"x-api-key": KEY},
        {"x-api-key": KEY, "authorization": f"Bearer {KEY}"},
        {"x-api-key": KEY, "authorization": "Bearer sk-other"},
    ],
)
async def test_either_header_works_on_every_route(
    gateway: Harness, path: str, headers: dict[str, str]
) -> None:
    body = {**message_body(), "prompt": "x"}
    method = ROUTES[path].method
    reply = await gateway.call(path, body, method=method, headers=headers, key=None)
    assert reply.status == 200


@pytest.mark.parametrize("path", list(OPEN_ROUTES))
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_open_routes_need_no_key(gateway: Harness, path: str, method: str) -> None:
    reply = await gateway.call(path, method=method, key=None)
    assert reply.status == 200
    assert reply.is_complete
    assert bool(reply.body) == (method == "GET")


async def test_health_tells_alive_from_ready(gateway: Harness) -> None:
    gateway.health.ready = False
    assert (await gateway.get("/health")).status == 200
    reply = await gateway.get("/ready")
    assert (reply.status, reply.json()["reason"]) == (503, "no worker")
    gateway.health.alive = False
    assert (await gateway.get("/health")).status == 503


async def test_unknown_url_and_method_use_the_routes_envelope(gateway: Harness) -> None:
    assert_openai(await gateway.get("/v2/nope"), 404)
    assert assert_anthropic(await gateway.get("/anthropic/nope"), 404)["type"] == "not_found_error"
    reply = await gateway.get("/v1/chat/completions")
    assert_openai(reply, 405)
    assert reply.headers["allow"] == "POST"
    assert_anthropic(await gateway.get("/v1/messages"), 405)
    assert (await gateway.call("/health", {})).headers["allow"] == "GET, HEAD"


async def test_unknown_model_is_404(gateway: Harness) -> None:
    error = assert_openai(await gateway.chat(model="nope"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    error = assert_anthropic(await gateway.messages(model="nope"), 404)
    assert error["type"] == "not_found_error"
    assert gateway.metrics.of("request_finished")[0]["model"] == ""
    assert_openai(await gateway.chat(model="archived"), 404)
    assert_openai(await gateway.get("/v1/models/nope"), 404)


REFUSALS = [
    (errors.PermissionDenied("no"), 403, 403),
    (errors.QueueFull("full", retry_after_ms=2500), 429, 429),
    (errors.QuotaExceeded("spent", retry_after_ms=600_000), 429, 429),
    (errors.Unavailable("draining"), 503, 529),
    (errors.DeadlineExceeded("late"), 408, 408),
    (errors.LoadFailed("corrupt weights"), 503, 529),
]


@pytest.mark.parametrize(("refusal", "openai", "anthropic"), REFUSALS)
@pytest.mark.parametrize("stream", [True, False])
async def test_refusals_have_their_status_and_retry_after(
    gateway: Harness, refusal: errors.MantleError, openai: int, anthropic: int, stream: bool
) -> None:
    gateway.admission.refusal = refusal
    replies = [await gateway.chat(stream=stream), await gateway.messages(stream=stream)]
    assert_openai(replies[0], openai)
    assert_anthropic(replies[1], anthropic)
    for reply in replies:
        if refusal.retryable:
            assert 1 <= int(reply.headers["retry-after"]) <= 60
            assert reply.headers["x-should-retry"] == "true"
        else:
            assert "retry-after" not in reply.headers
    limited = "anthropic-ratelimit-unified-status" in replies[1].headers
    assert limited == (anthropic == 429)


async def test_model_that_cannot_be_loaded_is_said_to_all_who_wait(gateway: Harness) -> None:
    gateway.texts.failure = errors.LoadFailed("the weights are corrupt")
    assert assert_openai(await gateway.chat(), 503)["message"] == "the weights are corrupt"
    assert_anthropic(await gateway.messages(), 529)


async def test_our_own_bug_is_500_without_internals(
    gateway: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.admission.refusal = ZeroDivisionError("SECRET prompt text")
    for reply in (await gateway.chat(), await gateway.messages()):
        assert reply.status == 500
        assert "SECRET" not in reply.body.decode()
        request_id = reply.headers.get("x-request-id") or reply.headers["request-id"]
        assert request_id in reply.json()["error"]["message"]
    bugs = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "ZeroDivisionError" in bugs[0].getMessage()
    assert "SECRET" not in bugs[0].getMessage()
    assert gateway.metrics.of("request_finished")[0]["outcome"] is Outcome.FAILED


async def test_our_own_bug_in_mid_stream_ends_the_stream(gateway: Harness) -> None:
    gateway.script(("a",), ZeroDivisionError("SECRET"))
    reply = await gateway.chat(stream=True)
    assert reply.frames[-1] == "data: [DONE]"
    assert reply.events[-1]["error"]["code"] == "internal_error"
    assert "SECRET" not in reply.body.decode()
    assert reply.is_complete


def test_every_error_class_has_a_row() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.MantleError)
    ]
    parents = {errors.PromptTooLong: errors.InvalidRequest}
    assert {parents.get(cls, cls) for cls in classes} == set(wire_errors.TABLE)


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("wait_ms", [0, 1, 999, 30_000, 10_000_000])
def test_retry_after_is_between_1_and_60_whole_seconds(wait_ms: float, jitter: float) -> None:
    error = errors.QueueFull("full", retry_after_ms=wait_ms)
    seconds = wire_errors.retry_after_s(error, jitter)
    assert seconds is not None
    assert 1 <= seconds <= 60
    assert seconds * 1000 >= min(wait_ms, 60_000)


async def test_headers_of_good_replies(gateway: Harness) -> None:
    reply = await gateway.chat()
    assert reply.headers["openai-version"] == "2020-10-01"
    assert int(reply.headers["openai-processing-ms"]) >= 0
    reply = await gateway.messages()
    assert reply.headers["anthropic-organization-id"] == "tenant-a"
    assert reply.headers["request-id"].startswith("req_")


async def test_phases_are_headers_only_when_exposed(make_harness: Any) -> None:
    assert "x-mantle-queue-ms" not in (await make_harness().chat()).headers
    reply = await make_harness(expose_phases_header=True).chat()
    assert reply.headers["x-mantle-queue-ms"] == "1.00"
    assert float(reply.headers["x-mantle-tokenise-ms"]) > 0


async def test_model_list_serves_both_kinds_of_clients(gateway: Harness) -> None:
    for path in ("/v1/models", "/openai/v1/models", "/anthropic/v1/models"):
        body = (await gateway.get(path)).json()
        assert (body["object"], body["has_more"], body["first_id"]) == ("list", False, "m")
        assert [model["id"] for model in body["data"]] == ["m"]
    model = (await gateway.get("/v1/models/m")).json()
    assert model == body["data"][0]
    assert model["created_at"] == "2023-11-14T22:13:20Z"
    assert (model["object"], model["type"], model["lifecycle"]) == ("model", "model", "active")
    assert model["max_input_tokens"] == WINDOW_TOKENS
    by_alias = (await gateway.get("/anthropic/v1/models/claude-sonnet-4")).json()
    assert by_alias["id"] == "m"


async def test_models_envelope_follows_the_version_header(gateway: Harness) -> None:
    assert_openai(await gateway.get("/v1/models/nope"), 404)
    versioned = {"anthropic-version": "2023-06-01"}
    assert_anthropic(await gateway.get("/v1/models/nope", headers=versioned), 404)


async def test_fingerprint_changes_with_the_weights(gateway: Harness) -> None:
    from gateway_fakes import entry

    before = (await gateway.chat()).json()["system_fingerprint"]
    assert before == (await gateway.chat(seed=7, temperature=0)).json()["system_fingerprint"]
    gateway.catalogue.models = [entry("m", digest="e" * 64)]
    assert (await gateway.chat()).json()["system_fingerprint"] != before


async def test_replies_name_the_model_as_asked(gateway: Harness) -> None:
    assert (await gateway.messages(model="claude-sonnet-4")).json()["model"] == "claude-sonnet-4"
    assert gateway.admission.asks[0].model_id == "m"


async def test_one_log_line_a_request(gateway: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mantle.gateway")
    headers = {"x-client-request-id": "client-7"}
    await gateway.call("/v1/chat/completions", chat_body(), headers=headers)
    (record,) = caplog.records
    fields = vars(record)
    assert (fields["route"], fields["tenant"], fields["model"], fields["status"]) == (
        "chat_completions", "tenant-a", "m", 200,
    )  # fmt: skip
    assert fields["outcome"] == "completed"
    assert fields["client_id"] == "client-7"


async def test_metrics_see_the_phases(gateway: Harness) -> None:
    await gateway.chat(stream=True)
    for name in ("tokenise", "prefill", "decode", "detokenise", "queue_wait", "ttft"):
        assert len(gateway.metrics.of(name)) == 1, name
    assert len(gateway.metrics.of("token_gap")) == 1
    (used,) = gateway.metrics.of("tokens_used")
    assert (used["output_tokens"], used["lane"], used["model"]) == (2, "standard", "m")


async def test_lifespan_is_answered(gateway: Harness) -> None:
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await gateway.app({"type": "lifespan"}, receive, send)
    assert json.dumps(sent) == (
        '[{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]'
    )
