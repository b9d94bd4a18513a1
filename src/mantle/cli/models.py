"""`mantle models`: which models can be served.

Weights stay where they are; only quantised copies are written, into the data folder. A running
server reads the catalogue again within a second.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from mantle.cli.failing import CommandFailed, failing_clearly
from mantle.cli.speed import compare_speeds
from mantle.cli.tenants import data_dir_option
from mantle.core.clock import SystemClock
from mantle.pool.catalogue import Catalogue, model_id
from mantle.pool.port import CatalogueEntry
from mantle.pool.weights import QUANTIZATIONS, SCRIPT_SUFFIX, entry_for, quantize, read_weights

_QUANTIZATION_PART = re.compile(r"[.-](i?q\d\w*|f16|f32|bf16)$", re.IGNORECASE)


@click.group()
def models() -> None:
    """Add, list and remove the models that can be served."""


@models.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", help="Name that clients use. Default: made from the file's name.")
@click.option(
    "--quantize",
    "kind",
    type=click.Choice(QUANTIZATIONS),
    help="Serve a smaller, faster copy, written to the data folder.",
)
@click.option("--alias", "aliases", multiple=True, help="A further name; repeat for several.")
@data_dir_option
@failing_clearly
def add(
    path: Path, name: str | None, kind: str | None, aliases: tuple[str, ...], data_dir: Path
) -> None:
    """Add the model in the file PATH (.gguf, or .script.json for the fake engine).

    With --quantize the speed of both files is measured and shown.
    """
    is_script = path.name.endswith(SCRIPT_SUFFIX)
    if kind is not None and is_script:
        raise CommandFailed(f"{path}: a script has no weights; leave out --quantize")
    name = model_id(name or name_of(path, kind))
    catalogue = Catalogue(data_dir)
    catalogue.check_names((name, *aliases))
    with _progress("hashing", path.name) as progress:
        facts = read_weights(path, progress=progress)
    if kind is not None:
        original, path = path, copy_path(data_dir, name)
        with _progress(f"quantising to {kind}", original.name) as progress:
            quantize(original, path, kind, progress=progress)
        with _progress("hashing", path.name) as progress:
            facts = read_weights(path, progress=progress)
    created_s = int(SystemClock().wall_s())
    entry = entry_for(path, facts, name=name, created_s=created_s, aliases=aliases)
    catalogue.add(entry)
    click.echo(f"added '{entry.id}': {_summary(entry)}")
    if kind is not None:
        _show_speeds(original, path)


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@data_dir_option
@failing_clearly
def list_models(as_json: bool, data_dir: Path) -> None:
    """List the models of the catalogue; says so where a weights file is missing."""
    entries = Catalogue(data_dir).entries()
    if as_json:
        click.echo(json.dumps([_as_json(entry) for entry in entries], indent=1))
        return
    if not entries:
        click.echo("no models yet; `mantle models add PATH` adds one")
    for entry in entries:
        names = ", ".join((entry.id, *entry.aliases))
        missing = "" if Path(entry.path).is_file() else "\tFILE IS MISSING"
        click.echo(f"{names}\t{entry.state}\t{_summary(entry)}\t{entry.path}{missing}")


@models.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_dir_option
@failing_clearly
def remove(name: str, yes: bool, data_dir: Path) -> None:
    """Remove the model NAME (or with that alias) from the catalogue.

    A copy that --quantize wrote is deleted; any other weights file is left alone.
    """
    catalogue = Catalogue(data_dir)
    entry = catalogue.find(name)
    copy = Path(entry.path) if entry and _is_our_copy(entry, data_dir) else None
    if entry is not None and not yes:
        also = f" and delete its copy {copy}" if copy else ""
        click.confirm(f"Remove '{entry.id}' from the catalogue{also}?", abort=True)
    removed = catalogue.remove(name)
    if copy is not None:
        copy.unlink(missing_ok=True)
    click.echo(f"removed '{removed.id}'" + (f" and {copy}" if copy else ""))


def name_of(path: Path, kind: str | None) -> str:
    """A name for clients: the file's, without its ending and quantisation, in lower case."""
    stem = path.name.removesuffix(SCRIPT_SUFFIX).removesuffix(".gguf")
    plain = re.sub(r"[^a-z0-9._-]+", "-", _QUANTIZATION_PART.sub("", stem).lower()).strip("-._")
    return f"{plain}-{kind}" if kind else plain


def copy_path(data_dir: Path, name: str) -> Path:
    """Where the quantised copy of a model lies."""
    return data_dir / "models" / f"{re.sub('[/:]', '__', name)}.gguf"


def _is_our_copy(entry: CatalogueEntry, data_dir: Path) -> bool:
    return Path(entry.path) == copy_path(data_dir, entry.id).absolute()


def _as_json(entry: CatalogueEntry) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(entry)
    return {**shown, "file_missing": not Path(entry.path).is_file()}


def _summary(entry: CatalogueEntry) -> str:
    parts = [
        entry.driver,
        f"{entry.parameters_count / 1e6:,.0f} M parameters" if entry.parameters_count else "",
        entry.quantization,
        f"{entry.size_bytes / 1e6:,.1f} MB",
        f"context {entry.window_tokens}",
        "" if entry.template_digest or entry.driver == "scripted" else "no chat template",
        f"sha256 {entry.digest[:12]}",
    ]
    return ", ".join(part for part in parts if part)


@contextlib.contextmanager
def _progress(verb: str, name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; yields what to call with (bytes done, bytes in all)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(f"{verb} {name}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show_speeds(original: Path, copy: Path) -> None:
    """Decode both files for a moment and print what the copy gains."""
    from mantle.engine.drivers.llama_cpp import LlamaCppDriver

    click.echo("measuring the decode speed of both files …", err=True)
    before, after = compare_speeds((original, copy), new_driver=LlamaCppDriver)
    ratio = f"{after / before:.2f} times as fast" if before > 0 else "not comparable"
    sizes = f"{copy.stat().st_size / original.stat().st_size:.2f} times the size"
    click.echo(
        f"original {before:.0f} tokens/s, copy {after:.0f} tokens/s (one sequence, one "
        f"thread): {ratio}, {sizes}"
    )
