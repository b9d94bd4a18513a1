"""What changed on disk while the server runs? The catalogue is read again within a second.

Invariant: a file that can not be read leaves what is in force as it was, and says so in the log.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mantle.cluster.config import ConfigError
from mantle.core.errors import MantleError

log = logging.getLogger("mantle.cluster")

CHECK_EVERY_S = 1.0


@dataclass(slots=True)
class WatchedFile:
    """A file, what to do when it has changed, and the stamp it had last time."""

    path: Path
    reload: Callable[[], None]
    stamp: tuple[int, int] = (0, 0)

    def check(self) -> None:
        """Reload if the file is another one than last time."""
        stamp = self._stamp_now()
        if stamp == self.stamp:
            return
        self.stamp = stamp
        try:
            self.reload()
        except (ConfigError, MantleError, OSError) as error:
            log.error("%s was not read again: %s", self.path.name, error)
        else:
            log.info("%s was read again", self.path.name)

    def arm(self) -> None:
        """Take the file as it is now for known."""
        self.stamp = self._stamp_now()

    def _stamp_now(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return (0, 0)
        return (status.st_mtime_ns, status.st_ino)


async def watch(files: list[WatchedFile]) -> None:
    """Check the files for ever."""
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        for file in files:
            file.check()
