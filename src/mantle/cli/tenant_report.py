"""`mantle tenants report`: who gets how much of a running server, and who has to wait?

The server is asked; nothing is read from its data folder.
"""

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from mantle.cli.ask_server import address_of, ask, asking_options
from mantle.cli.failing import failing_clearly
from mantle.cli.tenants import config_option, json_option


class Waits(msgspec.Struct, frozen=True):
    """As in the report; seconds."""

    count: int
    mean_s: float
    p50_s: float
    p99_s: float


class Row(msgspec.Struct, frozen=True):
    """One tenant in one lane."""

    tenant: str
    lane: str
    weight: float
    served_cost: float
    share_of_lane: float
    share: float
    waits: Waits
    parks: int
    running: int
    queued: int


class Judged(msgspec.Struct, frozen=True):
    """How fairly one lane of one model is shared."""

    windows_compared: int
    jain_index: float | None


class Report(msgspec.Struct, frozen=True):
    """The answer of `/admin/v1/report`, as far as it is shown."""

    window_s: float
    served_cost: float
    certificate: float
    certificate_highest: float
    sharing: list[Judged]
    tenants: list[Row]
    omitted: int


@click.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True,
              help="Most rows: the most served first.")  # fmt: skip
@json_option
@config_option
@asking_options
@failing_clearly
def report(
    limit: int, as_json: bool, config_path: Path | None, url: str | None, admin_key: str | None
) -> None:
    """Show what each tenant of a running server got in the last minutes, and how it waited."""
    path = f"/admin/v1/report?limit={limit}"
    answer, words = ask(address_of(url, config_path), path, admin_key, Report)
    if as_json:
        click.echo(msgspec.json.format(words, indent=1).decode())
        return
    console = Console(width=None if Console().is_terminal else 140)
    console.print(_table(answer))
    if answer.omitted:
        console.print(f"{answer.omitted} rows more; --limit shows them")
    console.print(_verdict(answer))


def _table(answer: Report) -> Table:
    title = f"the last {answer.window_s:.0f} s: {answer.served_cost:.6g} token cost served"
    table = Table(title=title, title_justify="left")
    for column in ("tenant", "lane"):
        table.add_column(column)
    for column in ("weight", "cost", "of lane", "of all", "started"):
        table.add_column(column, justify="right")
    for column in ("wait mean", "p50", "p99", "parks", "running", "queued"):
        table.add_column(column, justify="right")
    for row in answer.tenants:
        waits = row.waits
        table.add_row(
            row.tenant,
            row.lane,
            f"{row.weight:g}",
            f"{row.served_cost:.6g}",
            f"{row.share_of_lane:.1%}",
            f"{row.share:.1%}",
            str(waits.count),
            *(f"{s:.2f} s" for s in (waits.mean_s, waits.p50_s, waits.p99_s)),
            *(str(count) for count in (row.parks, row.running, row.queued)),
        )
    return table


def _verdict(answer: Report) -> str:
    windows = sum(one.windows_compared for one in answer.sharing)
    weighted = sum(
        one.jain_index * one.windows_compared
        for one in answer.sharing
        if one.jain_index is not None
    )
    jain = f"{weighted / windows:.3f}" if windows else "not to be told: nobody competed"
    return (
        f"fairness certificate {answer.certificate:.3f}, at most {answer.certificate_highest:.3f} "
        f"since the start (1 is the bound); Jain's index {jain} ({windows} windows of 10 s)"
    )
