"""Who may come back to an ask? Every ask that is under way, by its id and its idempotency key.

Invariant: an ask is here from its entry until its owner is done with it. When the client of a
keyed, followed or recovered ask is gone, a keeper reads on for it; nobody reading for
`grace_s` ends it like a departure.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mantle.core.clock import Clock
from mantle.core.errors import MantleError
from mantle.gateway.answer import Answer, Source, TokenTimes
from mantle.gateway.branch import Branch
from mantle.gateway.follow import Follower
from mantle.gateway.reply import Job, ReplyContext
from mantle.journal.port import Asked
from mantle.scheduler.port import Generation

log = logging.getLogger("mantle.gateway")


class NoTimes:
    """Implements `TokenTimes` for readings that say nothing about our speed."""

    def first_token(self, at_ms: float) -> None: ...

    def token_gap(self, gap_ms: float) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class HeldAsk:
    """One ask with all that is needed to answer it, once or again.

    `generations` are in the order of `asked.choices`; `durable` is set once `asked` is written.
    """

    asked: Asked
    job: Job
    context: ReplyContext
    generations: list[Generation]
    durable: asyncio.Event = field(default_factory=asyncio.Event)
    followers: int = 0
    lonely_since_ms: float = 0.0

    def __repr__(self) -> str:
        return f"HeldAsk({self.asked.id}, {len(self.generations)} choices)"

    @property
    def outlives_client(self) -> bool:
        """Somebody else reads it, or may come back for it."""
        return bool(self.asked.key_digest) or self.followers > 0

    def own_answer(self, clock: Clock, times: TokenTimes) -> Answer:
        """The one reading that ends the generations."""
        return self._answer(self.generations, clock, times)

    def following_answer(self, clock: Clock) -> Answer:
        """Another reading, from the start."""
        followers: list[Generation] = [Follower(one) for one in self.generations]
        return self._answer(followers, clock, NoTimes())

    def _answer(self, generations: list[Generation], clock: Clock, times: TokenTimes) -> Answer:
        job = self.job
        sources = [
            Source(
                generation,
                Branch(
                    self.context.text,
                    choice_index=index,
                    stop_strings=job.stop_strings,
                    echoes=job.echoes,
                    scores=job.sampling.logprobs_count is not None,
                    drops_output=job.drops_output,
                ),
                self.asked.choices[index].prompt_index,
            )
            for index, generation in enumerate(generations)
        ]
        return Answer(sources, clock=clock, times=times)


class HeldAsks:
    """All asks under way on this server."""

    def __init__(self, clock: Clock, *, grace_s: float) -> None:
        self._clock = clock
        self._grace_s = grace_s
        self._by_id: dict[str, HeldAsk] = {}
        self._by_key: dict[str, HeldAsk] = {}
        self._claims: dict[str, asyncio.Future[None]] = {}
        self._keepers: set[asyncio.Task[None]] = set()

    def find(self, ask_id: str) -> HeldAsk | None:
        return self._by_id.get(ask_id)

    def add(self, ask: HeldAsk) -> None:
        self._by_id[ask.asked.id] = ask
        if ask.asked.key_digest:
            self._by_key[ask.asked.key_digest] = ask
            self.release(ask.asked.key_digest)

    def drop(self, ask: HeldAsk) -> None:
        """The owner is done with it; from now on only the journal knows it."""
        self._by_id.pop(ask.asked.id, None)
        if self._by_key.get(ask.asked.key_digest) is ask:
            del self._by_key[ask.asked.key_digest]

    async def claim(self, key_digest: str) -> HeldAsk | None:
        """The ask that runs under this key; None: the caller has it now, and must `release`."""
        while True:
            if key_digest in self._by_key:
                return self._by_key[key_digest]
            claimed = self._claims.get(key_digest)
            if claimed is None:
                self._claims[key_digest] = asyncio.get_running_loop().create_future()
                return None
            await asyncio.shield(claimed)

    def release(self, key_digest: str) -> None:
        """Let others look again; idempotent."""
        claimed = self._claims.pop(key_digest, None)
        if claimed is not None and not claimed.done():
            claimed.set_result(None)

    def left(self, ask: HeldAsk) -> None:
        """A follower has gone."""
        ask.followers -= 1
        ask.lonely_since_ms = self._clock.now_ms()

    def keep(self, ask: HeldAsk, answer: Answer, done: Callable[[], None]) -> None:
        """Read on for the client that is gone, and `drop` the ask in the end."""
        ask.lonely_since_ms = self._clock.now_ms()
        keeper = asyncio.create_task(self._keep(ask, answer, done), name="gateway-keeper")
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)

    async def close(self) -> None:
        """End all keepers; close the dispatcher first, or their requests are cancelled."""
        keepers = list(self._keepers)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, ask: HeldAsk, answer: Answer, done: Callable[[], None]) -> None:
        answer.go_on()
        try:
            while not answer.is_done and (left_s := self._left_s(ask)) > 0:
                await answer.take(left_s)
        except MantleError:
            pass  # the generation ended with it; whoever follows is told
        except Exception:  # the task's outermost edge
            log.exception("reading on for a client that is gone failed")
        finally:
            await answer.close()
            self.drop(ask)
            done()

    def _left_s(self, ask: HeldAsk) -> float:
        """How long it may still run if nobody reads it."""
        if ask.followers:
            return self._grace_s
        return self._grace_s - (self._clock.now_ms() - ask.lonely_since_ms) / 1_000
