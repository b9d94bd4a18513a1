"""Is the worker still there, and what does it say? The dispatcher's handle on a worker process.

Invariant: a lost worker is killed and reaped exactly once, and `receive` raises `ReplicaLost` after
the last event that was read. Lost means: end of file (the kernel tells at once), a bad frame, no
bytes for `silence_s_max` (SIGSTOP, swapped out), or one engine step longer than `step_s_max`.

Silence is counted by the watchdog's own ticks, each for at most twice its length: when this
process itself stood still (a suspended laptop, a debugger, a long collection), the time it could
not have read does not count against the worker. Heartbeats end here; `receive` does not give them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

from mantle.core import limits
from mantle.core.errors import ReplicaLost
from mantle.engine import frames
from mantle.engine.port import Command, Heartbeat, WorkerEvent

logger = logging.getLogger(__name__)

_TICKS_PER_SILENCE = 10

SPIN_COUNT = "3000"
"""How long an OpenMP thread of the engine spins at a barrier before it sleeps (GNU's own default is
10 to 100 times that). Beside other busy processes the long spin made a step of 16 sequences take
1.5 s instead of 0.2 s: docs/log.md has the runs. Set GOMP_SPINCOUNT to choose another.
"""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """When a worker counts as lost, in seconds; tests shorten them."""

    start_s_max: float = limits.WORKER_START_S_MAX
    silence_s_max: float = limits.HEARTBEAT_MISSED_S_MAX
    step_s_max: float = limits.STEP_S_MAX
    close_s_max: float = limits.WORKER_CLOSE_S_MAX


class SubprocessWorkerLink(asyncio.Protocol):
    """`WorkerLink` to a child process over a socket pair. Lives on one event loop."""

    def __init__(
        self, name: str, process: "subprocess.Popen[bytes]", link_limits: LinkLimits
    ) -> None:
        self.name = name
        self._process = process
        self._limits = link_limits
        self._loop = asyncio.get_running_loop()
        self._reader = frames.event_reader()
        self._events: list[WorkerEvent] = []
        self._changed = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None
        self._is_closing = False
        self._lost_cause: str | None = None
        self._reaping: asyncio.Task[int] | None = None
        self._has_spoken = False
        self._silence_s = 0.0
        self._tick_s = link_limits.silence_s_max / _TICKS_PER_SILENCE
        self._last_tick_s = self._loop.time()
        self._watchdog = self._loop.call_later(self._tick_s, self._tick)

    @classmethod
    async def start(
        cls, name: str, *, link_limits: LinkLimits = LinkLimits(), threads: int = 0
    ) -> Self:
        """Spawn a worker. Raises `OSError` when there can be none.

        Call it on a thread that lives as long as the worker should: the kernel ties them together.
        `threads` sets OMP_NUM_THREADS before any engine is imported (0: leave it alone).
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                process = _spawn(name, theirs.fileno(), threads)
            except BaseException:
                ours.close()
                raise
        link = cls(name, process, link_limits)
        ours.setblocking(False)
        try:
            await link._loop.create_unix_connection(lambda: link, sock=ours)
        except BaseException:
            link._lose("no connection")
            raise
        return link

    # --- the port -------------------------------------------------------------------------------
    def send(self, commands: Sequence[Command]) -> None:
        """Buffered without bound: the scheduler admits no more than the slots hold."""
        if commands and self._transport is not None and self._lost_cause is None:
            self._transport.write(frames.encode_commands(commands))

    async def receive(self) -> list[WorkerEvent]:
        while not self._events and self._lost_cause is None:
            self._changed.clear()
            await self._changed.wait()
        if self._events:
            events, self._events = self._events, []
            return events
        raise ReplicaLost(f"worker {self.name} was lost: {self._lost_cause}")

    async def close(self) -> None:
        """Let the worker end by itself, else kill it; returns when it is reaped. Idempotent."""
        if self._lost_cause is None:
            await self._end_gently()
        if self._reaping is not None:
            await asyncio.shield(self._reaping)

    async def _end_gently(self) -> None:
        assert self._transport is not None
        self._is_closing = True
        self._watchdog.cancel()
        cause = "closed, and did not end by itself"
        try:
            self._transport.write_eof()
            wait = asyncio.create_task(asyncio.to_thread(self._process.wait))
            done, _ = await asyncio.wait([wait], timeout=self._limits.close_s_max)
            cause = "closed" if done else cause
        finally:
            self._lose(cause)

    # --- facts for logs -------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_reason(self) -> str | None:
        """Why it is gone, and how the process ended once it is reaped; None while it lives."""
        if self._lost_cause is None:
            return None
        return f"{self._lost_cause}; {_describe_exit(self._process.returncode)}"

    # --- asyncio.Protocol -----------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._silence_s = 0.0
        self._has_spoken = True
        try:
            messages = self._reader.feed(data)
        except frames.BadFrame as fault:
            self._lose(f"bad frame ({fault})")
            return
        for message in messages:
            if isinstance(message, Heartbeat):
                if message.busy_ms > self._limits.step_s_max * 1e3:
                    self._lose(f"an engine step takes longer than {self._limits.step_s_max:g} s")
            else:
                self._events.append(message)
        if self._events:
            self._changed.set()

    def eof_received(self) -> bool:
        return False  # the transport closes and tells `connection_lost`

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self._is_closing:  # then `close` waits for the process itself
            self._lose("its end of the link closed")

    # --- watching and losing --------------------------------------------------------------------
    def _tick(self) -> None:
        now_s = self._loop.time()
        self._silence_s += min(now_s - self._last_tick_s, 2 * self._tick_s)
        self._last_tick_s = now_s
        allowed_s = self._limits.silence_s_max if self._has_spoken else self._limits.start_s_max
        if self._silence_s > allowed_s:
            self._lose(f"silent for {self._silence_s:.1f} s")
        else:
            self._watchdog = self._loop.call_later(self._tick_s, self._tick)

    def _lose(self, cause: str) -> None:
        """The one place where a worker is given up. Kills, closes, wakes the reader, reaps."""
        if self._lost_cause is not None:
            return
        self._lost_cause = cause
        self._watchdog.cancel()
        self._changed.set()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)  # also ends a stopped process
        if self._transport is not None:
            self._transport.abort()
        self._reaping = self._loop.create_task(self._reap())

    async def _reap(self) -> int:
        exit_code = await asyncio.to_thread(self._process.wait)
        logger.info("worker %s (pid %d) ended: %s", self.name, self.pid, self.exit_reason)
        return exit_code


def _spawn(name: str, child_fd: int, threads: int) -> "subprocess.Popen[bytes]":
    environment = {"GOMP_SPINCOUNT": SPIN_COUNT, **os.environ}
    if threads > 0:
        environment["OMP_NUM_THREADS"] = str(threads)
    module = ["-P", "-m", "mantle.engine.worker"]  # -P: nothing is imported from the current folder
    arguments = ["--fd", str(child_fd), "--name", name, "--parent", str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, *module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__,  # stdout is the server's own
        pass_fds=(child_fd,),
        env=environment,
        start_new_session=True,  # a Ctrl-C in the terminal reaches the parent only
    )


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "not yet reaped"
    if exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"exit code {exit_code}"
