"""What does a file system look like that forgets what was not synced? A FUSE process over `Disk`.

Invariant: each operation is in the log before it is acknowledged, so killing this process loses
nothing of what was done, and its log says exactly what a power loss leaves.

Run: `python -m tests.crash.forgetful_fs FOLDER LOG`. It starts with what replaying LOG gives, and
appends to it. Faults are ordered by writing to the hidden file `.faults` in the folder.
"""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import mfusepy
import msgspec

from tests.crash.forgetful_disk import (
    AnyOp,
    Create,
    Disk,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Unlink,
    Write,
)
from tests.crash.forgetful_log import FAULTS_NAME, Faults, encoded, read_log

FAULTS_HANDLE = 1 << 40


class ForgetfulFs(mfusepy.Operations):
    """One flat folder; a handle is the file's number on the disk."""

    use_ns = True

    def __init__(self, log: Path) -> None:
        self._disk = Disk(read_log(log))
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._faults = Faults()

    def _do(self, op: AnyOp) -> None:
        os.write(self._log, encoded(op))
        self._disk.apply(op)

    def _find(self, path: str) -> int:
        name = path[1:]
        if name == FAULTS_NAME:
            return FAULTS_HANDLE
        file = self._disk.names.get(name)
        if file is None:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return file

    def _need_room(self, file: int, end: int) -> None:
        growth = end - len(self._disk.files[file].live)
        room = self._faults.room_bytes
        if growth > 0 and room is not None and self._disk.size_bytes() + growth > room:
            raise mfusepy.FuseOSError(errno.ENOSPC)

    # --- names ----------------------------------------------------------------------------------
    def getattr(self, path, fh=None):
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        file = self._find(path) if fh is None else fh
        size = 0 if file == FAULTS_HANDLE else len(self._disk.files[file].live)
        owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size, **owner}

    def readdir(self, path, fh):
        return [".", "..", *self._disk.names]

    def create(self, path, mode, fi=None):
        self._do(Create(path[1:]))
        return self._disk.names[path[1:]]

    def open(self, path, flags):
        return self._find(path)

    def rename(self, old, new):
        self._do(Rename(old[1:], new[1:]))
        return 0

    def unlink(self, path):
        self._find(path)
        self._do(Unlink(path[1:]))
        return 0

    def chmod(self, path, mode):
        return 0

    def chown(self, path, uid, gid):
        return 0

    # --- content --------------------------------------------------------------------------------
    def read(self, path, size, offset, fh):
        return bytes(self._disk.files[fh].live[offset : offset + size])

    def write(self, path, data, offset, fh):
        if fh == FAULTS_HANDLE:
            self._faults = msgspec.json.decode(data, type=Faults)
            return len(data)
        self._need_room(fh, offset + len(data))
        self._do(Write(fh, offset, data))
        return len(data)

    def truncate(self, path, length, fh=None):
        file = self._find(path) if fh is None else fh
        if file != FAULTS_HANDLE:
            self._need_room(file, length)
            self._do(Truncate(file, length))
        return 0

    def fsync(self, path, datasync, fh):
        has_failed = self._fails_now(path[1:])
        self._do(Sync(fh, has_failed))
        if has_failed:
            raise mfusepy.FuseOSError(errno.EIO)
        return 0

    def _fails_now(self, name):
        faults = self._faults
        if faults.syncs_before_fault is None or name != (faults.only or name):
            return False
        faults.syncs_before_fault -= 1
        if faults.syncs_before_fault >= 0:
            return False
        faults.syncs_before_fault = None
        return True

    def fsyncdir(self, path, datasync, fh):
        self._do(SyncFolder())
        return 0


def end_with_parent(folder: str) -> None:
    """A killed test leaves no mount: its end of our stdin closes."""
    sys.stdin.buffer.read()
    subprocess.run(["fusermount3", "-u", "-z", folder], check=False)
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, args=(sys.argv[1],), daemon=True).start()
    # One thread: the log's order is the order of events. `kernel_cache`: opening a file again must
    # not drop the pages that somebody has mapped (SQLite's -shm). `hard_remove`: no stand-in names.
    mfusepy.FUSE(
        ForgetfulFs(Path(sys.argv[2])),
        sys.argv[1],
        foreground=True,
        nothreads=True,
        kernel_cache=True,
        hard_remove=True,
    )
