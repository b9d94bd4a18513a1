"""How is the peer LiteLLM run? The newest proxy that pip finds, in its own environment.

Invariant: set up for speed, as its documentation advises: one worker, logging and telemetry off,
no database, a static key, httptools instead of uvicorn's slower default parser; nothing is fetched
while it runs.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from peers.process import running

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".build" / "litellm"
PYTHON: Final = CACHE / "bin" / "python"
API_KEY: Final = "sk-benchmark"
QUIET: Final = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_MODE": "PRODUCTION",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}


def install() -> str:
    """The version of LiteLLM in its environment, installed when it is not there yet."""
    if not (CACHE / "bin" / "litellm").exists():
        print(f"installing litellm[proxy], once, in {CACHE}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(CACHE)], check=True)
        packages = ["litellm[proxy]", "httptools", "uvloop"]
        command = [str(PYTHON), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(command, check=True)
    code = "from importlib.metadata import version; print(version('litellm'))"
    result = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.strip()


@contextlib.contextmanager
def running_litellm(
    upstream_url: str, *, model: str, port: int, prefix: Sequence[str] = ()
) -> Iterator[str]:
    """The proxy on loopback in front of `upstream_url`; yields its base URL. Key: `API_KEY`."""
    install()
    config_path = CACHE / f"config-{port}.yaml"
    config_path.write_text(json.dumps(_config(upstream_url, model), indent=2))  # JSON is YAML
    command = [*prefix, str(CACHE / "bin" / "litellm"), "--config", str(config_path)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    command += ["--telemetry", "False"]
    url = f"http://127.0.0.1:{port}"
    with running(
        command,
        ready_url=f"{url}/health/liveliness",
        ready_s=120,
        environment={**os.environ, **QUIET},
        log_path=CACHE / f"proxy-{port}.log",
    ):
        yield url


def _config(upstream_url: str, model: str) -> dict[str, object]:
    upstream = {"model": f"openai/{model}", "api_base": f"{upstream_url}/v1", "api_key": "none"}
    return {
        "model_list": [{"model_name": model, "litellm_params": upstream}],
        "litellm_settings": {"set_verbose": False, "num_retries": 0, "request_timeout": 60},
        "general_settings": {"master_key": API_KEY, "disable_spend_logs": True},
    }
