"""Does the load client count right? A claim is only as good as the client that measured it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.load import LoadResult, load

EVENT = 'data: {{"choices":[{{"delta":{{"content":"{}"}},"finish_reason":null}}]}}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = "data: [DONE]\n\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunked(*texts: str) -> bytes:
    chunks = [f"{len(text.encode()):x}\r\n{text}\r\n" for text in texts]
    return "".join([*chunks, "0\r\n\r\n"]).encode()


def plain(status: str, text: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


async def exchanged(*replies: Sequence[bytes], concurrency: int = 1) -> LoadResult:
    """One request a reply; a reply is written piece by piece; `b""` closes the connection."""
    left = iter(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await _request_arrived(reader):
            for piece in next(left):
                if not piece:
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    bodies: list[dict[str, Any]] = [{}] * len(replies)
    try:
        return await load(f"http://127.0.0.1:{port}/v1/x", bodies, concurrency=concurrency)
    finally:
        server.close()


async def _request_arrived(reader: asyncio.StreamReader) -> bool:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return False
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return True


async def test_streamed_reply_is_counted_from_its_usage():
    body = chunked(EVENT.format("Hel"), EVENT.format("lo"), USAGE, DONE)
    result = await exchanged([STREAM_HEAD, body])
    (exchange,) = result.exchanges
    assert (exchange.error, exchange.text) == (None, "Hello")
    assert (exchange.prompt_tokens, exchange.output_tokens) == (3, 2)
    assert exchange.started_s < exchange.token_times_s[0] <= exchange.ended_s
    assert exchange.ttft_ms <= exchange.total_ms


@pytest.mark.parametrize("size", [1, 2, 7, 64])
async def test_reply_in_pieces_of_any_size_reads_alike(size):
    whole = STREAM_HEAD + chunked(EVENT.format("Hel"), EVENT.format("lo"), USAGE + DONE)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    result = await exchanged(pieces, pieces)
    assert result.failures == []
    assert [exchange.text for exchange in result.exchanges] == ["Hello", "Hello"]


async def test_plain_reply_is_read():
    text = (
        '{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    )
    result = await exchanged([plain("200 OK", text)])
    (exchange,) = result.exchanges
    assert (exchange.text, exchange.finish_reason, exchange.output_tokens) == ("Hi", "stop", 1)


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([plain("429 Too Many Requests", "{}")], "HTTP 429"),
        ([STREAM_HEAD, chunked(EVENT.format("x"), USAGE)], "without [DONE]"),
        ([STREAM_HEAD, chunked(EVENT.format("x"), DONE)], "no usage"),
        ([STREAM_HEAD, chunked('data: {"error":{"message":"broke"}}\n\n', DONE)], "error event"),
        ([STREAM_HEAD, EVENT.format("x").encode()[:5], b""], "connection lost"),
        ([b""], "connection lost"),
        ([plain("200 OK", "{")], "unreadable"),
    ],
)
async def test_a_broken_reply_is_a_failure_and_its_tokens_do_not_count(pieces, reason):
    result = await exchanged(pieces)
    assert reason in result.failures[0]
    assert result.output_tokens_per_s == 0
    assert result.good == []
