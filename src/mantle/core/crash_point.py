"""Where may a test kill this process? Named places at the edges of a commit and of sending.

Invariant: nothing happens unless `MANTLE_CRASH_POINT` names one: `name`, or `name:3` for the third
time it is passed. Then the process dies as by `kill -9`.
"""

import os
import signal
from typing import Final

CRASH_POINTS: Final = (
    "before_commit",  # records are queued, none of them is on the disk
    "after_commit",  # they are durable, nobody has been told
    "after_acknowledge",  # readers have been told, nothing has left the process yet
    "after_send",  # text has left the process, of which the client may have seen all or nothing
)

_name, _, _times = os.environ.get("MANTLE_CRASH_POINT", "").partition(":")
_left = int(_times or 1)


def crash_point(name: str) -> None:
    """Die here, when a test asked for it."""
    global _left
    if name != _name:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
