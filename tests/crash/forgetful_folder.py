"""How does a test get a folder whose power it may cut? It mounts one, and always lets go of it.

Invariant: `close` ends within seconds whatever the folder's users do, and leaves nothing mounted.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.crash.forgetful_disk import AnyOp, Disk, PowerLost
from tests.crash.forgetful_log import FAULTS_NAME, Faults, append_log, read_log

DEADLINE_S = 20
POLL_S = 0.005


def why_not() -> str:
    """Why no such folder can be had on this machine; empty when it should be possible."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no FUSE: /dev/fuse is missing or may not be opened"
    if shutil.which("fusermount3") is None:
        return "no FUSE: fusermount3 is missing (Debian: apt-get install fuse3)"
    if importlib.util.find_spec("mfusepy") is None:
        return "no FUSE: the Python package mfusepy is missing (make setup)"
    return ""


class CannotMount(Exception):
    """FUSE is there, but this process may not mount (as in most containers)."""


class ForgetfulFolder:
    """`path` is the folder while it is mounted; the disk behind it is `log`."""

    def __init__(self, beside: Path, *, ops: list[AnyOp] | None = None) -> None:
        self.path = beside / "power"
        self.log = beside / "power.log"
        self._said = beside / "power.err"
        self._process: subprocess.Popen[bytes] | None = None
        self.path.mkdir()
        append_log(self.log, ops or [])

    def mount(self) -> None:
        """Returns when it can be used. Raises `CannotMount`."""
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.forgetful_fs", str(self.path), str(self.log)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
            )
        deadline = time.monotonic() + DEADLINE_S
        while not os.path.ismount(self.path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                reason = self._said.read_text().strip().splitlines()[-1:]
                raise CannotMount(f"no FUSE: mounting failed {reason}")
            time.sleep(POLL_S)

    def cut_power(self, seed: int | None = None) -> None:
        """Everything not synced is gone; `mount` turns the machine on again."""
        self.close()
        append_log(self.log, [PowerLost(seed)])

    def order(self, faults: Faults) -> None:
        """From the next operation on."""
        (self.path / FAULTS_NAME).write_bytes(msgspec.json.encode(faults))

    def ops(self) -> list[AnyOp]:
        return list(read_log(self.log))

    def close(self) -> None:
        """Its processes get errors from now on; they should be dead by then."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate(timeout=DEADLINE_S)
        self._process = None
        subprocess.run(
            ["fusermount3", "-u", "-z", str(self.path)],
            check=False,
            capture_output=True,
            timeout=DEADLINE_S,
        )


@contextlib.contextmanager
def forgetful_folder(beside: Path, *, ops: list[AnyOp] | None = None) -> Iterator[ForgetfulFolder]:
    """A mounted one, on the disk that `ops` made."""
    beside.mkdir(parents=True, exist_ok=True)
    folder = ForgetfulFolder(beside, ops=ops)
    try:
        folder.mount()
        yield folder
    finally:
        folder.close()


def write_image(disk: Disk, folder: Path) -> None:
    """What processes of `disk` see, as files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in disk.content().items():
        (folder / name).write_bytes(content)
