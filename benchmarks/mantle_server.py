"""How does a benchmark run Mantle? As a user would: `mantle serve` with its own config file."""

import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peers.process import free_port, running

ROOT: Final = Path(__file__).resolve().parents[1]
LOG: Final = ROOT / ".build" / "benchmark-mantle.log"
API_KEY: Final = "sk-mantle-benchmark-0000000000000000"


@dataclass(frozen=True, slots=True)
class RunningMantle:
    """Where the server listens, and the key that lets a client in."""

    url: str
    api_key: str


@contextlib.contextmanager
def running_mantle(
    model_name: str,
    model_path: Path,
    *,
    engine: dict[str, Any],
    prefix: Sequence[str] = (),
    api_keys: Sequence[str] = (API_KEY,),
    journal: dict[str, Any] | None = None,
) -> Iterator[RunningMantle]:
    """`mantle serve` on a free port with one model and a tenant for each key, in a new folder."""
    port = free_port()
    program = str(Path(sys.executable).parent / "mantle")
    with tempfile.TemporaryDirectory(prefix="mantle-benchmark-") as folder:
        config_path = Path(folder) / "mantle.yaml"
        config_path.write_text(
            json.dumps(config_of(folder, engine, model_name, api_keys) | {"journal": journal or {}})
        )  # JSON is YAML
        add = [program, "models", "add", str(model_path), "--name", model_name]
        subprocess.run([*add, "--data-dir", folder], check=True, stdout=subprocess.DEVNULL)
        command = [*prefix, program, "serve", "--config", str(config_path), "--port", str(port)]
        url = f"http://127.0.0.1:{port}"
        with running(command, ready_url=f"{url}/ready", ready_s=60, log_path=LOG):
            yield RunningMantle(url, api_keys[0])


def config_of(
    folder: str, engine: dict[str, Any], model_name: str, api_keys: Sequence[str]
) -> dict[str, Any]:
    hashes = [hashlib.sha256(api_key.encode()).hexdigest() for api_key in api_keys]
    return {
        "data_dir": folder,
        "engine": engine,
        "pool": {"preload": [model_name]},
        "tenants": [
            {"id": f"tenant-{number}", "api_key_sha256": [key_hash]}
            for number, key_hash in enumerate(hashes)
        ],
        "observe": {"log_level": "warning"},
    }
