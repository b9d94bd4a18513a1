"""How does a benchmark kill Mantle and bring it back? The same folder, the same port, each time.

Invariant: `kill` is `kill -9`, of the worker, of the server ("gateway"), or of all processes at
once; nothing of an earlier life is alive when the next one starts.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import httpx

from mantle_server import API_KEY, config_of
from peers.process import free_port

START_S_MAX: Final = 60.0
_LOADED: Final = re.compile(r"is ready on \S+: \d+ MiB in (\d+) ms")


class Victim(StrEnum):
    """Which processes die."""

    WORKER = "worker"
    GATEWAY = "gateway"
    ALL = "all"


class MortalServer:
    """`mantle serve` in a folder of its own, with one model and one tenant."""

    def __init__(self, model: str, weights: Path, engine: dict[str, Any]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mantle-recovery-"))
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.headers = {"authorization": f"Bearer {API_KEY}"}
        self._program = str(Path(sys.executable).parent / "mantle")
        config = config_of(str(self._folder), engine, model, (API_KEY,))
        config["observe"] = {"log_level": "info"}
        (self._folder / "mantle.yaml").write_text(json.dumps(config))
        add = [self._program, "models", "add", str(weights), "--name", model]
        add += ["--data-dir", str(self._folder)]
        subprocess.run(add, check=True, stdout=subprocess.DEVNULL)
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; does not wait."""
        config = str(self._folder / "mantle.yaml")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "serve", "--config", config, "--port", str(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline_s:
            try:
                if httpx.get(f"{self.url}/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        sys.exit(f"the server is not ready after {START_S_MAX:g} s:\n{self._log.read_text()}")

    def kill(self, victim: Victim) -> None:
        """Kill -9; what has to be started by somebody else is started at once."""
        assert self._process is not None
        if victim is Victim.WORKER:
            for pid in self._workers():
                os.kill(pid, signal.SIGKILL)
            return
        if victim is Victim.ALL:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()
        self.start()

    def load_times_ms(self) -> list[float]:
        """How long each load of the model took, since the folder was made."""
        return [float(found) for found in _LOADED.findall(self._log.read_text())]

    def remove(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=30)
        shutil.rmtree(self._folder)

    def _workers(self) -> list[int]:
        assert self._process is not None
        listed = subprocess.run(
            ["pgrep", "-P", str(self._process.pid), "-f", "mantle.engine.worker"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(pid) for pid in listed.stdout.split()]
