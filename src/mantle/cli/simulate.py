"""`mantle simulate`: what would a pool of this size have made of that traffic?

The real scheduler runs under a virtual clock, with engines on paper; nothing is served.
"""

from dataclasses import asdict
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from mantle.cli.failing import CommandFailed
from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.testing.sim_cluster.arrival import Arrival, sped_up
from mantle.testing.sim_cluster.plot import plot_svg
from mantle.testing.sim_cluster.replay import Pool, Replay, replay
from mantle.testing.sim_cluster.report import Line, Report, report_of
from mantle.testing.sim_cluster.traces import TraceUnreadable, read_trace

TENANTS_SHOWN = 12


@click.command()
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A trace: Azure, Mooncake, VTC or ServeGen.",
)
@click.option("--accelerators", type=click.IntRange(1), required=True, help="Replicas in the pool.")
@click.option("--speedup", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
              help="Play the trace so many times as fast.")  # fmt: skip
@click.option("--seconds", type=float, help="Only so much of the trace (before the speed-up).")
@click.option("--slots", type=click.IntRange(1), default=32, show_default=True,
              help="Sequences an accelerator runs at once.")  # fmt: skip
@click.option("--weight", "weights", multiple=True, metavar="TENANT=WEIGHT",
              help="Share of a tenant against others; repeat for several. Default: 1.")  # fmt: skip
@click.option("--lane", "lanes", multiple=True, metavar="LANE=SHARE",
              help="Share of requests in a lane; repeat. Default: all Standard.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="For all that is drawn.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path),
              help="Write report.json and served.svg into this folder.")  # fmt: skip
def simulate(
    trace: Path,
    accelerators: int,
    speedup: float,
    seconds: float | None,
    slots: int,
    weights: tuple[str, ...],
    lanes: tuple[str, ...],
    seed: int,
    out: Path | None,
) -> None:
    """Replay a trace on a pool on paper and report who was served how."""
    mix = {Lane(name): share for name, share in _pairs(lanes, [str(lane) for lane in Lane])}
    pool = Pool(
        accelerators,
        slots,
        weights={TenantId(name): weight for name, weight in _pairs(weights)},
        lanes=mix or {Lane.STANDARD: 1.0},
    )
    arrivals = _read(trace, seed=seed, seconds=seconds, speedup=speedup)
    run = replay(arrivals, pool, seed=seed)
    report = report_of(run)
    _show(report, pool)
    if out is not None:
        _write(out, run, report, title=f"{trace.name} on {accelerators} × {slots} slots")


def _read(trace: Path, *, seed: int, seconds: float | None, speedup: float) -> list[Arrival]:
    try:
        arrivals = read_trace(trace, seed=seed, seconds=seconds)
    except TraceUnreadable as error:
        raise CommandFailed(str(error)) from None
    if not arrivals:
        raise CommandFailed(f"{trace.name} has no requests in that time")
    return sped_up(arrivals, speedup)


def _pairs(texts: tuple[str, ...], names: list[str] | None = None) -> list[tuple[str, float]]:
    pairs: list[tuple[str, float]] = []
    for text in texts:
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            raise click.UsageError(f"'{text}' is not NAME=NUMBER") from None
        if value <= 0 or (names is not None and name not in names):
            known = f"; the names are {', '.join(names)}" if names else ""
            raise click.UsageError(f"'{text}' can not be: the number must be above 0{known}")
        pairs.append((name, value))
    return pairs


def _show(report: Report, pool: Pool) -> None:
    console = Console(width=None if Console().is_terminal else 120)
    console.print(_table("lane", report.lanes, f"{report.requests} requests, by lane"))
    shown = report.tenants[:TENANTS_SHOWN]
    title = f"{len(report.tenants)} tenants, the {len(shown)} most served"
    console.print(_table("tenant", shown, title))
    jain = "no competition" if report.jain_index is None else f"{report.jain_index:.3f}"
    console.print(
        f"{pool.accelerators} accelerators × {pool.slots} slots, busy "
        f"{report.utilisation:.1%} of {report.span_s:.0f} s (all done after {report.end_s:.0f} s)\n"
        f"rejected by a full queue of their own: {report.rejected}\n"
        f"Jain's index {jain}, fairness certificate at most {report.certificate_max:.3f} "
        f"(1 is the bound) in {report.windows_compared} windows"
    )


def _table(name: str, lines: tuple[Line, ...], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(name)
    for column in ("requests", "done", "expired", "cost", "share", "of weights"):
        table.add_column(column, justify="right")
    for column in ("wait p50", "wait p99", "TTFT p50", "parks"):
        table.add_column(column, justify="right")
    for line in lines:
        weight = "" if line.weight_share is None else f"{line.weight_share:.1%}"
        table.add_row(
            line.name,
            *(str(count) for count in (line.requests, line.completed, line.expired)),
            f"{line.served_cost:.4g}",
            f"{line.served_share:.1%}",
            weight,
            *(f"{ms / 1e3:.2f} s" for ms in (line.wait_ms_p50, line.wait_ms_p99, line.ttft_ms_p50)),
            str(line.parks),
        )
    return table


def _write(out: Path, run: Replay, report: Report, *, title: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(asdict(report))))
    (out / "served.svg").write_text(plot_svg(run, report, title=title))
    click.echo(f"written: {out / 'report.json'}, {out / 'served.svg'}")
