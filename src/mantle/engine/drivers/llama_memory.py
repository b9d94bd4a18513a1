"""How much KV may a model take here? Fits slots and window into half of the memory that is free.

Invariant: pure but for `kv_budget_bytes`, which reads the machine; what does not fit is lowered
(slots first, then the window) and the lowered numbers are what the load report says.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mantle.core.errors import LoadFailed
from mantle.engine.port import EngineSettings

_CELLS_STEP: Final = 256
"""llama.cpp rounds a stream's cells up to this."""

_WINDOW_TOKENS_MIN: Final = 256
"""A model that has room for less is not worth loading."""

_SEQUENCES_MAX: Final = 256
"""llama.cpp's own bound on sequences (LLAMA_MAX_SEQ)."""


@dataclass(frozen=True, slots=True)
class KvPlan:
    """What the context gets. `cells` is the total of all slots."""

    slots: int
    window_tokens: int
    cells: int
    streams: bool


def plan_kv(
    settings: EngineSettings,
    *,
    window_trained_tokens: int,
    bytes_per_token: int,
    budget_bytes: int,
) -> KvPlan:
    """The largest plan within the settings that fits. Raises `LoadFailed` when none does."""
    window = window_trained_tokens
    if settings.window_tokens:
        window = min(settings.window_tokens, window_trained_tokens)
    affordable_tokens = budget_bytes // max(1, bytes_per_token)
    if affordable_tokens < min(window, _WINDOW_TOKENS_MIN):
        raise LoadFailed("there is not enough free memory for this model's KV")
    window = min(window, affordable_tokens)
    slots = max(1, min(settings.slots, _SEQUENCES_MAX))
    stream_cells = _rounded_up(window)
    if settings.kv_layout == "streams":
        slots = max(1, min(slots, affordable_tokens // stream_cells))
        return KvPlan(slots, window, slots * stream_cells, streams=True)
    cells = min(slots * stream_cells, affordable_tokens // _CELLS_STEP * _CELLS_STEP)
    return KvPlan(slots, window, max(cells, stream_cells), streams=False)


def kv_budget_bytes() -> int:
    """Half of what the machine, or this process's memory group, still has free."""
    return min(_machine_free_bytes(), _group_free_bytes()) // 2


def _rounded_up(tokens: int) -> int:
    return -(-tokens // _CELLS_STEP) * _CELLS_STEP


def _machine_free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _group_free_bytes() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = (group / "memory.current").read_text().strip()
    except OSError:
        return 1 << 62
    return (1 << 62) if limit == "max" else max(0, int(limit) - int(used))
