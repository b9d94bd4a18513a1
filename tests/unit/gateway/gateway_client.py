"""A tiny ASGI client that records what the application sends, and readers of its replies."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Reply:
    """What the application sent."""

    status: int
    headers: dict[str, str]
    sends: list[bytes]
    is_complete: bool

    @property
    def body(self) -> bytes:
        return b"".join(self.sends)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def frames(self) -> list[str]:
        """The SSE frames, without their positions (`ids`)."""
        return [frame[frame.startswith("id: ") and frame.index("\n") + 1 :] for frame in self._raw]

    @property
    def ids(self) -> list[str]:
        """The positions of the frames that have one."""
        return [frame[4 : frame.index("\n")] for frame in self._raw if frame.startswith("id: ")]

    @property
    def _raw(self) -> list[str]:
        return [frame for frame in self.body.decode().split("\n\n") if frame]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of all SSE events but [DONE]."""
        lines = [line for frame in self.frames for line in frame.split("\n")]
        payloads = [line[6:] for line in lines if line.startswith("data: ")]
        return [json.loads(payload) for payload in payloads if payload != "[DONE]"]


class Call:
    """One request in flight, with its client's side of the connection."""

    def __init__(self, app: Any, method: str, path: str, body: bytes, headers: dict[str, str]):
        self._body = body
        self._was_read = False
        self._disconnected = asyncio.Event()
        self._changed = asyncio.Event()
        self.messages: list[dict[str, Any]] = []
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._was_read:
            self._was_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._changed.set()

    def disconnect(self) -> None:
        self._disconnected.set()

    async def until(self, text: bytes) -> None:
        """Wait until `text` has been sent."""
        while text not in self.reply.body:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 5)

    @property
    def reply(self) -> Reply:
        start = self.messages[0] if self.messages else {"status": 0, "headers": []}
        bodies = self.messages[1:]
        return Reply(
            start["status"],
            {k.decode(): v.decode() for k, v in start["headers"]},
            [message["body"] for message in bodies if message["body"]],
            bool(bodies) and not bodies[-1]["more_body"],
        )

    async def finished(self) -> Reply:
        await asyncio.wait_for(asyncio.shield(self.task), 5)
        return self.reply


def chat_text(reply: Reply, index: int = 0) -> str:
    """Joined content of one choice, streamed or not."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return str(reply.json()["choices"][index]["message"]["content"])
    return "".join(
        choice["delta"].get("content", "")
        for event in reply.events
        for choice in event.get("choices", ())
        if choice["index"] == index
    )


def message_text(reply: Reply) -> str:
    """Joined text of a message, streamed or not."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return "".join(block["text"] for block in reply.json()["content"])
    return "".join(
        event["delta"]["text"] for event in reply.events if event["type"] == "content_block_delta"
    )
