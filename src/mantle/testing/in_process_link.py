"""What does a worker look like without a process? The same step loop, on the test's event loop.

Invariant: it behaves as `SubprocessWorkerLink` does (messages cross in encoded form, a death or a
stall raises `ReplicaLost` from `receive`), but it steps only inside `receive`, never sleeps, and
time is the `SimClock`'s.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from mantle.core.errors import ReplicaLost
from mantle.core.limits import STEP_S_MAX
from mantle.engine import frames
from mantle.engine.drivers import make_driver
from mantle.engine.drivers.scripted import ScriptedDriver
from mantle.engine.port import Command, Driver, WorkerEvent
from mantle.engine.step_loop import StepLoop
from mantle.testing.sim_clock import SimClock


class WorkerDied(BaseException):
    """A scripted death: passes every `except Exception`, as a real one would."""


class InProcessLink:
    """`WorkerLink` in one process. `hold` and `release` stop and let go the steps.

    While held, commands are still handled, so that a test can put the scheduler into a state and
    look at it; `kill` is a `kill -9`.
    """

    def __init__(self, loop: StepLoop, clock: SimClock) -> None:
        self.step_count = 0
        self._loop = loop
        self._clock = clock
        self._inbox: list[Command] = []
        self._changed = asyncio.Event()
        self._lost_cause: str | None = None
        self._is_held = False

    @classmethod
    def scripted(cls, clock: SimClock | None = None) -> Self:
        """A worker whose scripted driver paces on `clock`; other drivers are the real ones."""
        sim_clock = clock or SimClock()
        return cls(StepLoop(sim_driver_maker(sim_clock), sim_clock), sim_clock)

    # --- the port -------------------------------------------------------------------------------
    def send(self, commands: Sequence[Command]) -> None:
        if commands and self._lost_cause is None:
            self._inbox += frames.command_reader().feed(frames.encode_commands(commands))
            self._changed.set()

    async def receive(self) -> list[WorkerEvent]:
        while True:
            await asyncio.sleep(0)  # others' turn
            if self._lost_cause is not None:
                raise ReplicaLost(f"worker was lost: {self._lost_cause}")
            events = self._turn()
            if events:
                return events
            if self._lost_cause is None and not self._can_step():
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        self._lose("closed")
        self._loop.close()

    # --- the test's hands -----------------------------------------------------------------------
    def kill(self) -> None:
        """As `kill -9`: nothing more comes."""
        self._lose("killed")

    def hold(self) -> None:
        """No step from now on."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        self._changed.set()

    @property
    def exit_reason(self) -> str | None:
        return self._lost_cause

    def _can_step(self) -> bool:
        return bool(self._inbox) or (not self._is_held and self._loop.has_work())

    def _turn(self) -> list[WorkerEvent]:
        events: list[WorkerEvent] = []
        commands, self._inbox = self._inbox, []
        for command in commands:
            events += self._loop.handle(command)
        if not self._is_held and self._loop.has_work():
            events += self._step()
        if not events:
            return []
        return frames.event_reader().feed(frames.encode_events(events))

    def _step(self) -> list[WorkerEvent]:
        started_ms = self._clock.now_ms()
        self.step_count += 1
        try:
            events = self._loop.step()
        except WorkerDied:
            self._lose("died within a step")
            return []
        if self._clock.now_ms() - started_ms > STEP_S_MAX * 1e3:
            self._lose("stalled")
            return []
        return events

    def _lose(self, cause: str) -> None:
        if self._lost_cause is None:
            self._lost_cause = cause
            self._changed.set()


def sim_driver_maker(clock: SimClock) -> Callable[[str], Driver]:
    """`make_driver`, but scripted drivers live on simulated time and die without the process."""

    def die() -> None:
        raise WorkerDied

    def make(name: str) -> Driver:
        if name == "scripted":
            return ScriptedDriver(pace=clock.sleep, clock=clock, die=die)
        return make_driver(name)

    return make
