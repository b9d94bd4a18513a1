"""How does one worker process live? Commands from a socket, a step, one frame of events; and so on.

Invariant: it never outlives its parent (end of file on the socket, and the kernel's parent-death
signal for when a step never returns), and a frame is sent whole or not at all. Run as
`python -m mantle.engine.worker --fd N --name W` by `worker_link`, never by hand.

Who may block whom: the main thread steps and sends, one thread reads, one says that we live. The
reader hands commands over in order and may interrupt a step for an urgent one. Sending blocks
when the parent does not read; a heartbeat then skips its turn (the frame under way is a sign of
life, as the parent judges silence by bytes), so neither waits for the other and none piles up.
"""

import argparse
import contextlib
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

from mantle.core.clock import SystemClock
from mantle.core.limits import HEARTBEAT_S
from mantle.engine import frames
from mantle.engine.drivers import make_driver
from mantle.engine.port import Command, Heartbeat, WorkerEvent
from mantle.engine.step_loop import StepLoop

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
_PR_SET_PDEATHSIG = 1


class Worker:
    """The loop around a `StepLoop`, and the threads beside it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._send_lock = threading.Lock()
        self._is_stopping = threading.Event()
        self._inbox: queue.SimpleQueue[list[Command]] = queue.SimpleQueue()
        self._loop = StepLoop(make_driver, SystemClock(), spawn=self._spawn)

    def run(self) -> None:
        """Serve until the parent closes its end or `stop` is called."""
        for target, name in ((self._beat, "heartbeat"), (self._read, "reader")):
            threading.Thread(target=target, name=name, daemon=True).start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not self._is_stopping.is_set():
                self._turn()
        self._is_stopping.set()
        self._loop.close()

    def stop(self) -> None:
        """End after the step in progress. Safe in a signal handler."""
        self._is_stopping.set()
        self._wake()

    def _turn(self) -> None:
        events: list[WorkerEvent] = []
        for command in self._commands():
            events += self._loop.handle(command)
        events += self._loop.adopt_loaded()
        events += self._loop.step()
        if events:
            frame = frames.encode_events(events)
            with self._send_lock:
                self._channel.sendall(frame)

    def _commands(self) -> list[Command]:
        """What has come; waits for something when there is no work."""
        commands: list[Command] = []
        if not self._loop.has_work():
            commands += self._inbox.get()
        with contextlib.suppress(queue.Empty):
            while True:
                commands += self._inbox.get_nowait()
        return commands

    def _read(self) -> None:
        """Read commands while the main thread steps: an urgent one ends the step in progress."""
        reader = frames.command_reader()
        try:
            while chunk := self._channel.recv(_RECEIVE_BYTES):
                commands = reader.feed(chunk)
                self._inbox.put(commands)
                for command in commands:
                    self._loop.interrupt_for(command)
        except (OSError, frames.BadFrame) as fault:
            logger.error("the link broke: %s", type(fault).__name__)
        self.stop()

    def _spawn(self, job: Callable[[], None]) -> None:
        """Run a load aside; the loop wakes when it is done."""

        def run() -> None:
            job()
            self._wake()

        threading.Thread(target=run, name="load", daemon=True).start()

    def _wake(self) -> None:
        self._inbox.put([])  # reentrant: fit for signal handlers

    def _beat(self) -> None:
        """Say that we live, and how long the engine has been at its step."""
        with contextlib.suppress(OSError):  # the main thread sees the end of the link too
            while True:
                if self._send_lock.acquire(blocking=False):
                    try:
                        frame = frames.encode_events([Heartbeat(self._loop.busy_ms())])
                        self._channel.sendall(frame)
                    finally:
                        self._send_lock.release()
                if self._is_stopping.wait(HEARTBEAT_S):
                    return


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill us when the parent's spawning thread ends (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit("the parent was gone before the worker began")


def main() -> None:
    parser = argparse.ArgumentParser(prog="mantle.engine.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    if sys.platform == "linux":
        die_with_parent(arguments.parent)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"worker {arguments.name}: %(message)s"
    )
    worker = Worker(socket.socket(fileno=arguments.fd))

    def on_sigterm(_number: int, _frame: FrameType | None) -> None:
        worker.stop()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to decide
    signal.signal(signal.SIGTERM, on_sigterm)
    worker.run()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0)  # a load still in progress must not hold the process


if __name__ == "__main__":
    main()
