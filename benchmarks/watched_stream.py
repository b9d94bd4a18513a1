"""What does a patient client see of a stream whose server dies? Every token, and when it came.

Invariant: it comes back by `Last-Event-ID` until the stream has ended; nothing is asked twice.
"""

import asyncio
import difflib
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

RETRY_S: Final = 0.02
REPLY_S_MAX: Final = 180.0


@dataclass(slots=True)
class WatchedStream:
    """One chat completion with `logprobs`, so that its tokens can be told apart.

    `times_s` are `perf_counter` seconds of each token's arrival.
    """

    body: dict[str, Any]
    tokens: list[str] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    text: str = ""
    billed_tokens: int = 0
    cuts: int = 0
    request_id: str = ""
    is_done: bool = False
    _position: str = ""

    async def run(self, client: httpx.AsyncClient) -> None:
        """Raises `TimeoutError` when it does not end."""
        async with asyncio.timeout(REPLY_S_MAX):
            while not self.is_done:
                try:
                    await self._read(client)
                except httpx.TransportError:
                    self.cuts += 1
                    await asyncio.sleep(RETRY_S)

    async def replay(self, client: httpx.AsyncClient) -> "WatchedStream":
        """The whole reply once more, as the journal has it."""
        again = WatchedStream(self.body, request_id=self.request_id)
        await again.run(client)
        return again

    async def _read(self, client: httpx.AsyncClient) -> None:
        if not self.request_id:
            request = client.build_request("POST", "/v1/chat/completions", json=self.body)
        else:
            headers = {"last-event-id": self._position} if self._position else {}
            path = f"/v1/streams/{self.request_id}"
            request = client.build_request("GET", path, headers=headers)
        response = await client.send(request, stream=True)
        try:
            if response.status_code != 200:
                raise RuntimeError(f"{response.status_code}: {await response.aread()!r}")
            self.request_id = response.headers["x-request-id"]
            async for line in response.aiter_lines():
                self._take(line)
        finally:
            await response.aclose()

    def _take(self, line: str) -> None:
        if line.startswith("id: "):
            self._position = line[4:]
        elif line == "data: [DONE]":
            self.is_done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            self.billed_tokens = (event.get("usage") or {}).get("completion_tokens", 0)
            for choice in event["choices"]:
                self.text += choice["delta"].get("content") or ""
                scored = (choice.get("logprobs") or {}).get("content") or []
                self.tokens += [one["token"] for one in scored]
                self.times_s += [time.perf_counter()] * len(scored)


def next_token_ms(stream: WatchedStream, killed_s: float) -> float | None:
    """From the kill to the first token made after it; None: it ended without being cut.

    Tokens that were on their way at the kill still arrive. So the end of the longest pause from the
    kill on is taken, which can only be later.
    """
    times_s = [at for at in stream.times_s if at >= killed_s]
    before_s = max((at for at in stream.times_s if at < killed_s), default=killed_s)
    pauses = [
        (later - earlier, later)
        for earlier, later in zip([before_s, *times_s], times_s, strict=False)
    ]
    if not pauses:
        return None
    return (max(pauses)[1] - killed_s) * 1_000


def lost_and_doubled(seen: list[str], truth: list[str]) -> tuple[int, int]:
    """Tokens that are only in `truth`, and only in `seen`, by the shortest edit."""
    if seen == truth:
        return 0, 0
    lost = doubled = 0
    matcher = difflib.SequenceMatcher(None, seen, truth, autojunk=False)
    for _, seen_from, seen_to, truth_from, truth_to in matcher.get_opcodes():
        if seen[seen_from:seen_to] != truth[truth_from:truth_to]:
            doubled += seen_to - seen_from
            lost += truth_to - truth_from
    return lost, doubled
