"""A real `mantle serve` process for tests: started on a free port, ready when returned."""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import httpx
import pytest
from click.testing import CliRunner

from mantle.cli.main import main

START_S_MAX = 90
MODEL = "smollm2-135m-instruct"


@dataclass
class RunningServer:
    """`mantle serve` and what it printed at start."""

    process: subprocess.Popen
    base_url: str
    api_key: str
    data_dir: str

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


def say(data_dir, *words: str) -> str:
    """What `mantle WORDS` says of a data folder; in this process, which has Mantle loaded."""
    done = CliRunner().invoke(main, [*words, "--data-dir", str(data_dir)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def start_server(
    data_dir, *options: str, config_text: str | None = None, env: dict[str, str] | None = None
) -> RunningServer:
    """Start a server on a free port; returns when `/ready` says yes."""
    command = [sys.executable, "-m", "mantle.cli.main", "serve", "--port", "0"]
    command += ["--data-dir", str(data_dir), *options]
    if config_text is not None:
        config = data_dir / "mantle.yaml"
        config.write_text(config_text)
        command += ["--config", str(config)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=open(data_dir / "server.log", "ab"),  # noqa: SIM115 (the child owns it)
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
    )
    printed = _read_until(process, "Stop with Ctrl-C", data_dir)
    base_url = re.search(r"listens on (\S+)", printed).group(1)
    key = re.search(r"OPENAI_API_KEY=(\S+)", printed).group(1)
    server = RunningServer(process, base_url, key, str(data_dir))
    _wait_ready(server)
    return server


def _read_until(process, end, data_dir) -> str:
    printed, deadline = "", time.monotonic() + START_S_MAX
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while end not in printed:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                log = (data_dir / "server.log").read_text()
                pytest.fail(f"the server did not start:\n{printed}\n{log}")
            if selector.select(timeout=0.2):
                printed += os.read(process.stdout.fileno(), 65_536).decode()
    return printed


def _wait_ready(server) -> None:
    deadline = time.monotonic() + START_S_MAX
    with httpx.Client() as client:
        while client.get(f"{server.base_url}/ready").status_code != 200:
            assert time.monotonic() < deadline, "the model did not load in time"
            assert server.process.poll() is None
            time.sleep(0.05)
