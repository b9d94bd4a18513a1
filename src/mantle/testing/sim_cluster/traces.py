"""How is a public trace read? Each format becomes a list of `Arrival`s, in order of time.

| format | known by | tenants |
|---|---|---|
| Azure LLM inference | columns `TIMESTAMP,ContextTokens,GeneratedTokens` | none: all are `azure` |
| Mooncake | `.jsonl` with `timestamp` in ms | none: all are `mooncake` |
| VTC, LMSYS arena | columns `req_time_s,client,prompt_tokens,output_tokens` | its clients |
| ServeGen | `…_rates.csv` beside `…_lengths.json` | its clients; see `servegen.py` |
"""

import csv
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from mantle.testing.sim_cluster.arrival import Arrival
from mantle.testing.sim_cluster.servegen import Lengths, RateRow, drawn_arrivals

T = TypeVar("T")

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
VTC_COLUMNS = ("req_time_s", "client", "prompt_tokens", "output_tokens")
RATES_COLUMNS = ("t_s", "client", "rate_rps", "cv", "pattern", "param1", "param2")


class TraceUnreadable(ValueError):
    """The file is no trace that we know, or breaks its own format; the text says where."""


def read_trace(path: Path, *, seed: int = 0, seconds: float | None = None) -> list[Arrival]:
    """Read a trace of any known format. Raises `TraceUnreadable` or `OSError`.

    `seconds`: only so much of it, from its start. ServeGen publishes rates, not requests: its
    arrivals are drawn with `seed`, from its busiest window on (one window without `seconds`).
    """
    columns = () if path.suffix == ".jsonl" else _columns(path)
    if columns == RATES_COLUMNS:
        lengths = path.with_name(path.name.removesuffix("_rates.csv") + "_lengths.json")
        rates = _csv_rows(path, _rate_row)
        return drawn_arrivals(rates, _lengths(lengths), seed=seed, seconds=seconds)
    if path.suffix == ".jsonl":
        arrivals = _mooncake(path)
    elif columns == AZURE_COLUMNS:
        arrivals = _csv_rows(path, _azure_row)
    elif columns == VTC_COLUMNS:
        arrivals = _csv_rows(path, _vtc_row)
    else:
        raise TraceUnreadable(f"{path.name} has the columns of no trace that Mantle knows")
    return _from_zero(arrivals, seconds)


def _from_zero(arrivals: list[Arrival], seconds: float | None) -> list[Arrival]:
    start_ms = min((arrival.at_ms for arrival in arrivals), default=0.0)
    moved = [
        Arrival(a.at_ms - start_ms, a.tenant, a.input_tokens, a.output_tokens) for a in arrivals
    ]
    moved.sort(key=lambda arrival: arrival.at_ms)
    return [a for a in moved if seconds is None or a.at_ms < seconds * 1e3]


def _columns(path: Path) -> tuple[str, ...]:
    with path.open(newline="") as file:
        return tuple(next(csv.reader(file), ()))


def _csv_rows(path: Path, read: Callable[[Mapping[str, str]], T]) -> list[T]:
    found: list[T] = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                found.append(read(row))
            except (ValueError, TypeError, KeyError) as error:
                raise TraceUnreadable(f"{path.name}, line {number}: {error}") from error
    return found


def _azure_row(row: Mapping[str, str]) -> Arrival:
    at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
    return _arrival(at_s * 1e3, "azure", row["ContextTokens"], row["GeneratedTokens"])


def _vtc_row(row: Mapping[str, str]) -> Arrival:
    at_ms = float(row["req_time_s"]) * 1e3
    return _arrival(at_ms, f"c{row['client']}", row["prompt_tokens"], row["output_tokens"])


def _rate_row(row: Mapping[str, str]) -> RateRow:
    return RateRow(
        float(row["t_s"]), f"c{row['client']}", float(row["rate_rps"]), float(row["cv"] or 1.0)
    )


def _arrival(at_ms: float, tenant: str, input_tokens: str, output_tokens: str) -> Arrival:
    """A model reads and writes at least one token, whatever a trace's zeros mean."""
    return Arrival(at_ms, tenant, max(1, int(input_tokens)), max(1, int(output_tokens)))


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int


def _mooncake(path: Path) -> list[Arrival]:
    arrivals: list[Arrival] = []
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            try:
                line = msgspec.json.decode(text, type=_MooncakeLine)
            except msgspec.MsgspecError as error:
                raise TraceUnreadable(f"{path.name}, line {number}: {error}") from error
            tokens = max(1, line.input_length), max(1, line.output_length)
            arrivals.append(Arrival(line.timestamp, "mooncake", *tokens))
    return arrivals


def _lengths(path: Path) -> Lengths:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lengths)
    except (OSError, msgspec.MsgspecError) as error:
        raise TraceUnreadable(f"{path.name}, which the rates need: {error}") from error
