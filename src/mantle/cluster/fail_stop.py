"""When must a server stop at once? When going on would break a promise.

Invariant: the first reason counts; whoever waits is woken once.
"""

import asyncio


class FailStop:
    """Set by whoever cannot go on, awaited by whoever runs the server."""

    def __init__(self) -> None:
        self.reason = ""
        self._failed = asyncio.Event()

    def fail(self, reason: str) -> None:
        """`reason` is fit for the log and for people."""
        self.reason = self.reason or reason
        self._failed.set()

    async def wait(self) -> None:
        await self._failed.wait()
