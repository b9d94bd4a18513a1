"""`mantle tenants`: make tenants and their API keys.

Keys are shown once, when they are made; only their hashes are stored. A running server reads the
file again within a second.
"""

import json
from pathlib import Path

import click

from mantle.admission.directory import hash_api_key
from mantle.cli.failing import failing_clearly
from mantle.cluster.config import ConfigError
from mantle.cluster.config_checks import problems_of
from mantle.cluster.config_model import Config, TenantConfig
from mantle.cluster.tenant_file import TenantFile
from mantle.core.lane import Lane

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("mantle-data"),
    envvar="MANTLE_DATA_DIR",
    show_default=True,
    help="The server's data folder.",
)


@click.group()
def tenants() -> None:
    """Make, list and change tenants and their API keys."""


@tenants.command()
@click.argument("tenant_id", metavar="ID")
@click.option("--weight", type=float, default=1.0, show_default=True, help="Share against others.")
@click.option(
    "--lane",
    "lanes",
    multiple=True,
    type=click.Choice([Lane.PRIORITY.value, Lane.STANDARD.value, Lane.FLEX.value]),
    help="A lane it may use; repeat for several. Default: all.",
)
@click.option("--model", "models", multiple=True, help="A model it may use. Default: all.")
@data_dir_option
@failing_clearly
def add(
    tenant_id: str, weight: float, lanes: tuple[str, ...], models: tuple[str, ...], data_dir: Path
) -> None:
    """Make a tenant and its first API key, shown once."""
    chosen = [Lane(lane) for lane in lanes] or [Lane.PRIORITY, Lane.STANDARD, Lane.FLEX]
    tenant = TenantConfig(tenant_id, weight, chosen, list(models) or None)
    problems = problems_of(Config(tenants=[tenant]))
    if problems:
        raise ConfigError("\n".join(problems))
    file = TenantFile(data_dir)
    file.add(tenant)
    click.echo(f"tenant '{tenant_id}' is made; its API key, shown only now:", err=True)
    click.echo(file.add_key(tenant_id))


@tenants.command()
@click.argument("tenant_id", metavar="ID")
@data_dir_option
@failing_clearly
def key(tenant_id: str, data_dir: Path) -> None:
    """Make one more API key for a tenant, shown once."""
    click.echo(TenantFile(data_dir).add_key(tenant_id))


@tenants.command()
@click.argument("tenant_id", metavar="ID")
@click.argument("hash_prefix", metavar="HASH")
@data_dir_option
@failing_clearly
def revoke(tenant_id: str, hash_prefix: str, data_dir: Path) -> None:
    """Forget the API keys of a tenant whose hash begins with HASH (see `list`)."""
    if len(hash_prefix) < 6:
        raise click.UsageError("give at least the first 6 digits of the hash")
    count = TenantFile(data_dir).revoke_key(tenant_id, hash_prefix)
    if count == 0:
        raise click.ClickException(f"tenant '{tenant_id}' has no key with such a hash")
    click.echo(f"{count} key revoked")


@tenants.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@data_dir_option
@failing_clearly
def list_tenants(as_json: bool, data_dir: Path) -> None:
    """List the tenants of the data folder (those of the config file are not shown)."""
    rows = TenantFile(data_dir).read()
    if as_json:
        values = [
            {"id": t.id, "weight": t.weight, "lanes": t.lanes, "models": t.models,
             "api_key_sha256": t.api_key_sha256}
            for t in rows
        ]  # fmt: skip
        click.echo(json.dumps(values, indent=1))
        return
    if not rows:
        click.echo("no tenants yet; `mantle tenants add ID` makes one")
    for tenant in rows:
        keys = " ".join(h[:12] for h in tenant.api_key_sha256) or "no key"
        models = "all models" if tenant.models is None else ", ".join(tenant.models)
        lanes = ", ".join(tenant.lanes)
        click.echo(f"{tenant.id}\tweight {tenant.weight:g}\t{lanes}\t{models}\tkeys: {keys}")


@tenants.command("hash")
def hash_key() -> None:
    """Read an API key without showing it and print its hash for `api_key_sha256` in a config."""
    click.echo(hash_api_key(click.prompt("API key", hide_input=True, err=True)))
