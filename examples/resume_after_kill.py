"""Kill the server in the middle of a stream, start it again, read the rest.

    .venv/bin/python examples/resume_after_kill.py

Uses the demo model, a data folder of its own and a free port. Prints the text as it comes, a mark
where the server died, and in the end whether it equals what an undisturbed run says (the model runs
with `numerics: exact`, so it must).
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

BODY = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "Tell me a short story about a lighthouse."}],
    "max_tokens": 120,
    "temperature": 0.8,
    "seed": 7,
    "stream": True,
}
KILL_AFTER_TOKENS = 40
START_S_MAX = 300


class Server:
    """`mantle serve` on one data folder."""

    def __init__(self, folder: Path, key: str = "") -> None:
        command = [sys.executable, "-m", "mantle.cli.main", "serve", "--port", "0"]
        command += ["--data-dir", str(folder)]
        if key:
            command += ["--config", str(folder / "mantle.yaml")]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        printed = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            printed += line
            if "Stop with Ctrl-C" in line:
                break
        url = re.search(r"listens on (\S+)", printed)
        assert url is not None, printed
        found = re.search(r"OPENAI_API_KEY=(\S+)", printed)
        self.key = key or (found[1] if found else "")
        headers = {"authorization": f"Bearer {self.key}"}
        self.client = httpx.Client(base_url=url[1], headers=headers, timeout=60)
        ends = time.monotonic() + START_S_MAX
        while self.client.get("/ready").status_code != 200 and time.monotonic() < ends:
            time.sleep(0.1)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def read(server: Server, method: str, path: str, *, kill_after: int = 0, **sent: Any) -> list[str]:
    """Text, last position and request id of a stream, read to its end or to the kill."""
    text, position, request_id, deltas = "", "", "", 0
    try:
        with server.client.stream(method, path, **sent) as response:
            request_id = response.headers["x-request-id"]
            for line in response.iter_lines():
                if line.startswith("id: "):
                    position = line[4:]
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    piece = choice["delta"].get("content") or ""
                    text, deltas = text + piece, deltas + bool(piece)
                    print(piece, end="", flush=True)
                if kill_after and deltas == kill_after:
                    server.kill()
                    kill_after = 0
    except httpx.TransportError:
        print("\n--- the server is dead ---")
    return [text, position, request_id]


def main() -> int:
    """Returns 0 when the text is whole and the same."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("starting a server (the first time it downloads or builds the demo model)…")
        first = Server(folder)
        key = first.key
        first.stop()
        (folder / "mantle.yaml").write_text("engine: {numerics: exact}\n")

        server = Server(folder, key)
        begun, position, request_id = read(
            server, "POST", "/v1/chat/completions", json=BODY, kill_after=KILL_AFTER_TOKENS
        )
        server = Server(folder, key)
        path = f"/v1/streams/{request_id}"
        rest, _, _ = read(server, "GET", path, headers={"last-event-id": position})
        print("\n--- an undisturbed run, to compare ---")
        undisturbed, _, _ = read(server, "POST", "/v1/chat/completions", json=BODY)
        server.stop()
    is_same = begun + rest == undisturbed
    print(f"\n{len(begun)} characters before the kill, {len(rest)} after it; same text: {is_same}")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
