"""What does a server do to its journal? This child does the same, and writes down what was told.

Run: `python -m tests.crash.journal_child FOLDER PLAN`. It recovers, goes on with what it finds,
makes new asks, and appends a line to the file `told` for all that a client was shown: an ask's
existence, the number of its tokens, its end. Nothing syncs `told`: its place in the log counts.
"""

import asyncio
import dataclasses
import os
import random
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec

from mantle.core.epoch import Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import ReplicaId, RequestId
from mantle.journal.record import Dispatched
from mantle.journal.stores.sqlite import SqliteStore
from mantle.journal.writer import DurableJournal, Policy
from mantle.testing.requests import a_request
from tests.unit.journal.records import ask_of, begun, finished, tokens

TOLD_NAME = "told"
REFUSED = "refused"
IN_FLIGHT_MAX = 4
DEADLINE_S = 60


class Plan(msgspec.Struct, frozen=True):
    """Asks `first_ask` to `first_ask + asks - 1` are made; all that run get `appends` pieces."""

    seed: int = 1
    first_ask: int = 0
    asks: int = 4
    appends: int = 40
    tokens_max: int = 4
    policy: Literal["strict", "relaxed"] = "strict"
    synchronous: str = "FULL"
    pause_s: float = 0.0
    dies_when_failed: bool = False


class Told(msgspec.Struct, frozen=True, tag=True):
    """A client has seen `count` tokens of an ask. `commits`: how many the journal had made."""

    ask: str
    count: int
    is_over: bool = False
    commits: int = 0


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """What the journal said: its failures, refusals, or trouble; empty when that is over."""

    reason: str
    failures: int = 0


def token_of(ask: int, index: int) -> int:
    """The right token there is only one of."""
    return ask * 1_000_000 + index


class Child:
    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.failures: list[str] = []
        self.in_flight = 0
        self.running: dict[int, list] = {}  # ask's number → [request, tokens so far, epoch]
        self._told = os.open(folder / TOLD_NAME, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self.journal = DurableJournal(
            SqliteStore(folder, synchronous=plan.synchronous),
            on_failed=self._note_failure,
            wall_s=time.time,
            policy=Policy(plan.policy),
        )

    def say(self, word: Told | Trouble) -> None:
        line = msgspec.json.encode(word)
        os.write(self._told, line + b"\n")
        print(line.decode(), flush=True)

    def _note_failure(self, reason: str) -> None:
        self.failures.append(reason)
        self.say(Trouble(reason, len(self.failures)))

    async def recover(self) -> None:
        for ask in (await self.journal.recover()).asks:
            (history,) = ask.requests
            self.say(Told(ask.asked.id, history.output_count))  # its client has come back
            epoch = Epoch(history.epoch + 1)
            again = Dispatched(history.request.id, epoch, ReplicaId("w1/fake"))
            await self.append([again], None)
            number = int(ask.asked.id.removeprefix("ask_"))
            self.running[number] = [history.request, history.output_count, epoch]

    async def begin(self) -> None:
        for number in range(self.plan.first_ask, self.plan.first_ask + self.plan.asks):
            request = dataclasses.replace(a_request(), id=RequestId(f"req_{number}"))
            records = [*begun(request), ask_of(request, ask_id=f"ask_{number}")]
            await self.append(records, Told(f"ask_{number}", 0))
            self.running[number] = [request, 0, Epoch(1)]

    async def write(self) -> None:
        for step in range(self.plan.appends):
            number = self.chance.choice(sorted(self.running))
            request, start, epoch = self.running[number]
            end = start + self.chance.randint(1, self.plan.tokens_max)
            ids = [token_of(number, index) for index in range(start, end)]
            self.running[number][1] = end
            await self.append(
                [tokens(request, start, *ids, epoch=epoch)], Told(f"ask_{number}", end)
            )
            if step % 10 == 9 and len(self.running) > 1:
                await self.append([finished(request, end)], Told(f"ask_{number}", end, True))
                del self.running[number]

    async def append(self, records, told: Told | None) -> None:
        """Append, and wait while too much is on its way; say when the journal is in trouble."""
        self.in_flight += 1

        def committed() -> None:
            self.in_flight -= 1
            if told is not None:
                self.say(msgspec.structs.replace(told, commits=self.journal.commits))

        self.journal.append(records, committed)
        await self.until(self.chance.randrange(IN_FLIGHT_MAX))
        if self.plan.pause_s:
            await asyncio.sleep(self.plan.pause_s)

    def try_again(self) -> None:
        """The disk would take it by now; the journal must not."""
        try:
            self.journal.append([], lambda: self.say(Told("told after the failure", 0)))
        except JournalFault:
            self.say(Trouble(REFUSED, len(self.failures)))

    async def until(self, in_flight_max: int) -> None:
        trouble, deadline = "", time.monotonic() + DEADLINE_S
        while self.in_flight > in_flight_max and not self.failures:
            assert time.monotonic() < deadline, "neither acknowledged nor failed"
            if trouble != self.journal.trouble:
                trouble = self.journal.trouble
                self.say(Trouble(trouble))
            await asyncio.sleep(0.0005)
        if self.failures:
            raise JournalFault("the journal has failed")


async def main(folder: Path, plan: Plan) -> None:
    try:
        child = Child(folder, plan)
    except JournalFault:
        print(msgspec.json.encode(Trouble("not opened", 1)).decode())
        return
    await child.recover()
    try:
        await child.begin()
        await child.write()
        await child.until(0)
    except JournalFault:
        child.try_again()
        if plan.dies_when_failed:
            os._exit(0)
    await child.journal.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Plan)))
