"""What is the least an OpenAI-compatible server can do? Answer at once, `max_tokens` words long.

The upstream of LiteLLM in benchmarks/gateway_overhead.py, and measured alone as the zero line.
One `send` an event, as an engine that decodes token by token would. Bare ASGI on uvicorn.
"""

import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peers.process import running

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
MODEL = "mock"
WORD = "word "


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    if scope["method"] != "POST":
        await _json(send, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    request = json.loads(body)
    count = int(request.get("max_tokens") or request.get("max_completion_tokens") or 16)
    usage = {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}
    if request.get("stream"):
        await _stream(send, count, usage)
    else:
        reply = {"role": "assistant", "content": WORD * count}
        choice = {"index": 0, "message": reply, "logprobs": None, "finish_reason": "length"}
        await _json(send, _envelope("chat.completion", [choice]) | {"usage": usage})


def _envelope(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    created = int(time.time())
    return {"id": "chatcmpl-1", "object": kind, "created": created, "model": MODEL} | {
        "choices": choices
    }


async def _json(send: Send, value: dict[str, Any]) -> None:
    content = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _stream(send: Send, count: int, usage: dict[str, int]) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": WORD}, None)] * count + [({}, "length")]
    for delta, finish in deltas:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        await _event(send, _envelope("chat.completion.chunk", [choice]))
    await _event(send, _envelope("chat.completion.chunk", []) | {"usage": usage})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _event(send: Send, value: dict[str, Any]) -> None:
    content = b"data: %s\n\n" % json.dumps(value).encode()
    await send({"type": "http.response.body", "body": content, "more_body": True})


@contextlib.contextmanager
def running_mock(port: int, *, prefix: Sequence[str] = ()) -> Iterator[str]:
    """The mock on loopback; yields its base URL. `prefix` goes before the command (taskset)."""
    command = [*prefix, sys.executable, "-m", "uvicorn", "peers.mock_openai:app"]
    command += ["--port", str(port)]
    command += ["--app-dir", str(Path(__file__).resolve().parents[1]), "--log-level", "warning"]
    command += ["--no-access-log", "--loop", "uvloop", "--http", "httptools"]
    # LiteLLM keeps its upstream connections; an early close would cost it failed requests.
    command += ["--timeout-keep-alive", "600"]
    url = f"http://127.0.0.1:{port}"
    with running(command, ready_url=f"{url}/v1/models", ready_s=20):
        yield url
