"""`mantle journal`: look into what was written down of requests, count it, check it, compact it.

All of it may run beside a server; nothing here shows a prompt or an output.
"""

import json
import time
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import click

from mantle.cli.failing import CommandFailed, failing_clearly
from mantle.cli.tenants import data_dir_option, json_option
from mantle.cluster.config import load_config
from mantle.cluster.journals import open_store
from mantle.core.errors import JournalFault
from mantle.journal.port import AskHistory, RequestHistory
from mantle.journal.store_port import JournalStore, Opening
from mantle.journal.stores.sqlite import FILE_NAME

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="MANTLE_CONFIG",
    help="The server's config, when its journal is not a file in the data folder.",
)


@click.group()
def journal() -> None:
    """Look into the journal of requests, check it, give its room back."""


@journal.command("ls")
@click.option("--running", is_flag=True, help="Only what is not finished.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most.")
@json_option
@config_option
@data_dir_option
@failing_clearly
def list_asks(
    running: bool, limit: int, as_json: bool, config_path: Path | None, data_dir: Path
) -> None:
    """List requests, newest first."""
    found = (
        one for one in _open(config_path, data_dir).summaries() if not (running and one.finished_s)
    )
    for ask in islice(found, limit):
        if as_json:
            fields = {name: getattr(ask, name) for name in ask.__slots__}
            click.echo(json.dumps(fields))
        else:
            state = "running" if ask.finished_s is None else f"finished {_time(ask.finished_s)}"
            choices = f"{ask.requests} choice{'s' * (ask.requests != 1)}"
            started = _time(ask.created_s)
            click.echo(f"{ask.id}  {started}  {ask.tenant_id}  {ask.route}  {choices}  {state}")


@journal.command()
@click.argument("ask_id", metavar="ID")
@config_option
@data_dir_option
@failing_clearly
def show(ask_id: str, config_path: Path | None, data_dir: Path) -> None:
    """Show one request as JSON: its choices, attempts, tokens and ends; no content."""
    try:
        history = _open(config_path, data_dir).history(ask_id)
    except JournalFault as fault:
        raise CommandFailed(f"{ask_id} is damaged: {fault.message}") from None
    if history is None:
        raise CommandFailed(f"there is no request '{ask_id}'; `mantle journal ls` lists them")
    click.echo(json.dumps(_shown(history), indent=2))


@journal.command()
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"]),
    help="Only what ended since then (UTC).",
)
@json_option
@config_option
@data_dir_option
@failing_clearly
def usage(since: datetime | None, as_json: bool, config_path: Path | None, data_dir: Path) -> None:
    """What each tenant used, by hour, model, lane and outcome; each token counts once."""
    since_s = 0 if since is None else int(since.replace(tzinfo=UTC).timestamp())
    for line in _open(config_path, data_dir).usage(since_s):
        if as_json:
            click.echo(json.dumps({name: getattr(line, name) for name in line.__slots__}))
        else:
            click.echo(
                f"{_time(line.hour_s)}  {line.tenant_id}  {line.model_id}  {line.lane}  "
                f"{line.outcome}  {line.requests} requests  {line.input_tokens} input "
                f"({line.cached_tokens} cached)  {line.output_tokens} output"
            )


@journal.command()
@config_option
@data_dir_option
@failing_clearly
def verify(config_path: Path | None, data_dir: Path) -> None:
    """Read everything; exit with 1 when something cannot be believed."""
    damaged = _open(config_path, data_dir).verify()
    for damage in damaged:
        click.echo(f"{damage.id}: {damage.reason}")
    if damaged:
        raise CommandFailed(f"{len(damaged)} damaged; a server sets them aside and serves the rest")
    click.echo("the journal is sound")


@journal.command()
@click.option(
    "--keep-s",
    type=click.FloatRange(0),
    default=3_600.0,
    show_default=True,
    help="Keep what finished less than so many seconds ago.",
)
@config_option
@data_dir_option
@failing_clearly
def compact(keep_s: float, config_path: Path | None, data_dir: Path) -> None:
    """Erase finished requests with their content and give the room back."""
    store = _open(config_path, data_dir, Opening.BESIDE)
    try:
        done = store.compact(int(time.time() - keep_s))
    finally:
        store.close()
    click.echo(f"{done.asks} erased; {done.bytes_before} bytes before, {done.bytes_after} after")


def _open(
    config_path: Path | None, data_dir: Path, opening: Opening = Opening.READING
) -> JournalStore:
    config = load_config(config_path).journal
    if config.store == "none":
        raise CommandFailed("journal.store is none in this config: nothing is written down")
    if config.store == "sqlite" and not (data_dir / FILE_NAME).exists():
        raise CommandFailed(f"{data_dir / FILE_NAME} is not there; is --data-dir right?")
    return open_store(config, data_dir, opening)


def _shown(history: AskHistory) -> dict[str, object]:
    asked = history.asked
    return {
        "id": asked.id,
        "tenant": asked.tenant_id,
        "route": asked.route,
        "created": _time(asked.created_s),
        "streams": asked.streams,
        "has_idempotency_key": bool(asked.key_digest),
        "choices": [_choice(one) for one in history.requests],
    }


def _choice(one: RequestHistory) -> dict[str, object]:
    return {
        "request": one.request.id,
        "model": one.request.model_id,
        "lane": one.request.lane.value,
        "attempts": one.epoch if one.was_dispatched else 0,
        "prompt_tokens": one.prompt_count,
        "cached_tokens": one.cached_tokens,
        "output_tokens": one.finished.usage.output_tokens if one.finished else one.output_count,
        "outcome": one.finished.outcome.value if one.finished else None,
    }


def _time(unix_s: int) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):  # damaged; `verify` says so
        return "unknown"
