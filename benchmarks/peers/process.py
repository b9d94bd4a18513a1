"""How does a benchmark run a server? As a child process that lives as long as a `with` block.

Invariant: the block is entered only when the server answers, and no child outlives it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pinned_to(core: int) -> list[str]:
    """A command prefix that keeps a process and its children on one core; empty if it cannot."""
    can_pin = shutil.which("taskset") and core < (os.cpu_count() or 1)
    return ["taskset", "-c", str(core)] if can_pin else []


@contextlib.contextmanager
def running(
    command: list[str],
    *,
    ready_url: str,
    ready_s: float,
    environment: dict[str, str] | None = None,
    log_path: Path | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A server process, from the moment that `ready_url` answers 200 until the block ends.

    A SIGTERM to the benchmark ends the block too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        output: Any = subprocess.DEVNULL
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(log_path.open("w"))
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            _wait_ready(process, ready_url, ready_s, log_path)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(
    process: "subprocess.Popen[bytes]", url: str, ready_s: float, log_path: Path | None
) -> None:
    deadline_s = time.monotonic() + ready_s
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    tail = log_path.read_text(errors="replace")[-2000:] if log_path else ""
    raise RuntimeError(f"{process.args!r} was not ready in {ready_s} s\n{tail}")
