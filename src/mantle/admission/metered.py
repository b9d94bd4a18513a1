"""What does a request cost its tenant? A generation that settles its holds by itself.

Invariant: each hold (of a quota, of bought capacity) is settled exactly once, at the end, the
failure, the cancel or the stop, whichever comes first, whatever the reader does then.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from mantle.core.errors import MantleError
from mantle.core.request import Request
from mantle.core.tokens import Usage
from mantle.scheduler.port import Ended, Generation, Phases, QueueView, TokenChunk


class Held(Protocol):
    """Something that a request took and that its end settles (None: nothing was computed)."""

    def progress(self, usage: Usage) -> None: ...

    def settle(self, usage: Usage | None) -> None: ...


class MeteredGeneration:
    """Implements `Generation` around another one."""

    def __init__(self, inner: Generation, *holds: Held) -> None:
        self.request: Request = inner.request
        self.ended: Ended | None = inner.ended
        self._inner = inner
        self._chunks = inner.__aiter__()
        self._holds = holds

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        """As the inner one; its tokens are charged as they come."""
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self._settle(self._inner.usage_so_far())
            self.ended = self._inner.ended
            raise
        except MantleError:
            usage = self._inner.usage_so_far()
            self._settle(usage if usage.output_tokens else None)  # no token came: it is free
            raise
        for hold in self._holds:
            hold.progress(self._inner.usage_so_far())
        return chunk

    def replay(self) -> AsyncIterator[TokenChunk]:
        """As the inner one; reading along costs nothing."""
        return self._inner.replay()

    @property
    def resumed_inexactly(self) -> bool:
        return self._inner.resumed_inexactly

    def queue_view(self) -> QueueView | None:
        return self._inner.queue_view()

    def usage_so_far(self) -> Usage:
        return self._inner.usage_so_far()

    def phases_so_far(self) -> Phases:
        return self._inner.phases_so_far()

    def cancel(self) -> None:
        """Free while it waits in its queue; else what was computed is charged."""
        usage = self._inner.usage_so_far()
        waits = self._inner.queue_view() is not None and not usage.output_tokens
        self._inner.cancel()
        self._settle(None if waits else usage)
        self.ended = self._inner.ended

    def stop_at(self, output_tokens: int) -> None:
        self._inner.stop_at(output_tokens)
        self._settle(self._inner.usage_so_far())
        self.ended = self._inner.ended

    def _settle(self, usage: Usage | None) -> None:
        holds, self._holds = self._holds, ()
        for hold in holds:
            hold.settle(usage)
