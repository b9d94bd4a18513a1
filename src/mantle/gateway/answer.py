"""How do the generations of one ask become one series of text events?

Invariant: after `close` nothing runs for this ask any more: every generation was read to its end,
stopped or cancelled, and every task is over. Once the client is gone all generations are
cancelled at once, whatever the reader is waiting for.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mantle.core.clock import Clock
from mantle.core.errors import Cancelled
from mantle.core.lane import Lane
from mantle.core.tokens import Usage
from mantle.gateway.branch import Branch
from mantle.gateway.mailbox import Mailbox
from mantle.gateway.text_events import TextEvent
from mantle.scheduler.port import Generation, QueueView, TokenChunk


class TokenTimes(Protocol):
    """Who wants to know when tokens arrive."""

    def first_token(self, at_ms: float) -> None: ...

    def token_gap(self, gap_ms: float) -> None: ...


@dataclass(slots=True, eq=False)
class Source:
    """One generation and the text it becomes. `prompt_index`: which of the ask's prompts."""

    generation: Generation
    branch: Branch
    prompt_index: int = 0
    is_over: bool = False
    last_token_ms: float | None = None


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A chunk, or (neither) a generation's end, or an error. No source: the client left."""

    source: Source | None
    chunk: TokenChunk | None = None
    error: Exception | None = None


class Answer:
    """Reads all generations of one ask. One reader; `close` must be called."""

    def __init__(self, sources: Sequence[Source], *, clock: Clock, times: TokenTimes) -> None:
        self.detokenise_ms = 0.0
        self._sources = sources
        self._clock = clock
        self._times = times
        self._mailbox: Mailbox[_Arrival] = Mailbox()
        self._failure: Exception | None = None
        self._has_left = False
        self._has_tokens = False
        self._open_count = len(sources)
        self._pumps = [asyncio.create_task(self._pump(source)) for source in sources]

    @property
    def is_done(self) -> bool:
        """All choices have ended."""
        return self._open_count == 0

    async def take(self, timeout_s: float) -> list[TextEvent]:
        """Events gathered (at least one), or none once `timeout_s` passed or all is done.

        Raises what a generation raised (events that came before it are returned first), or
        `Cancelled` when the client has left.
        """
        deadline_ms = self._clock.now_ms() + timeout_s * 1000
        while self._failure is None and not self.is_done and not self._has_left:
            left_s = (deadline_ms - self._clock.now_ms()) / 1000
            if left_s <= 0:
                return []
            events: list[TextEvent] = []
            for arrival in await self._mailbox.take(left_s):
                self._digest(arrival, events)
            if events:
                return events
        if self._failure is not None:
            raise self._failure
        if self._has_left:
            raise Cancelled("the client went away")
        return []

    def client_left(self, *, goes_on: bool = False) -> None:
        """The reader's `take` raises `Cancelled`. Unless it `goes_on`, cancel everything now."""
        if goes_on:
            self._mailbox.put(_Arrival(None))
            return
        self._cancel_all()
        self._mailbox.put(_Arrival(None, error=Cancelled("the client went away")))

    def go_on(self) -> None:
        """Somebody else reads on."""
        self._has_left = False

    def usage(self) -> Usage:
        """Tokens used so far; a prompt shared by several branches counts once."""
        prompts: dict[int, Usage] = {}
        for source in self._sources:
            seen = source.generation.usage_so_far()
            input_tokens = len(source.generation.request.prompt_tokens)
            cached_tokens = min(seen.cached_tokens, input_tokens)
            first = prompts.setdefault(source.prompt_index, Usage(input_tokens, cached_tokens))
            if cached_tokens < first.cached_tokens:  # the branch that computed the prompt
                prompts[source.prompt_index] = Usage(input_tokens, cached_tokens)
        output_tokens = sum(source.branch.output_tokens for source in self._sources)
        return sum(prompts.values(), Usage(output_tokens=output_tokens))

    @property
    def generations(self) -> list[Generation]:
        return [source.generation for source in self._sources]

    @property
    def resumed_inexactly(self) -> bool:
        """Some choice went on after a cut, perhaps with other tokens than an undisturbed run."""
        return any(source.generation.resumed_inexactly for source in self._sources)

    def queue_view(self) -> QueueView | None:
        """Where the first branch still waiting stands; None when all are running."""
        views = (source.generation.queue_view() for source in self._sources)
        return next((view for view in views if view is not None), None)

    def served_lane(self) -> Lane:
        generation = self._sources[0].generation
        return generation.ended.served_lane if generation.ended else generation.request.lane

    async def close(self) -> None:
        """Cancel what still runs and wait until no task is left."""
        self._cancel_all()
        running = [pump for pump in self._pumps if not pump.done()]
        for pump in running:
            pump.cancel()
        if running:
            await asyncio.wait(running)

    def _cancel_all(self) -> None:
        for source in self._sources:
            if not source.is_over:
                source.is_over = True
                source.generation.cancel()

    async def _pump(self, source: Source) -> None:
        put = self._mailbox.put
        try:
            async for chunk in source.generation:
                put(_Arrival(source, chunk))
        except Exception as error:  # the task's outermost edge: the reader raises it
            source.is_over = True
            put(_Arrival(source, error=error))
        else:
            put(_Arrival(source))

    def _digest(self, arrival: _Arrival, events: list[TextEvent]) -> None:
        source = arrival.source
        if source is None and arrival.error is None:
            self._has_left = True
            return
        if source is None or arrival.error is not None:
            if source is None or source.branch.ended is None:
                self._failure = self._failure or arrival.error
            return
        branch = source.branch
        if branch.ended is not None or self._failure is not None:
            return  # what a stopped generation still had under way
        if arrival.chunk is None:
            self._finish(source, events)
            return
        started_ms = self._clock.now_ms()
        if arrival.chunk.token_ids:
            self._note_times(source, started_ms)
        events += branch.feed(arrival.chunk)
        self.detokenise_ms += self._clock.now_ms() - started_ms
        if branch.ended is not None:
            self._open_count -= 1
            source.is_over = True
            source.generation.stop_at(branch.output_tokens)

    def _finish(self, source: Source, events: list[TextEvent]) -> None:
        source.is_over = True
        ended = source.generation.ended
        assert ended is not None, "a generation stopped without its last word"
        events += source.branch.finish(ended.finish)
        self._open_count -= 1

    def _note_times(self, source: Source, now_ms: float) -> None:
        if source.last_token_ms is not None:
            self._times.token_gap(now_ms - source.last_token_ms)
        elif not self._has_tokens:
            self._has_tokens = True
            self._times.first_token(now_ms)
        source.last_token_ms = now_ms
