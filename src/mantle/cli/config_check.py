"""`mantle config check`: will this config do what it says? Errors end with 2, warnings are listed.

Invariant: it changes nothing: without a data folder it judges the config file alone.
"""

from pathlib import Path

import click

from mantle.cli.failing import failing_clearly
from mantle.cli.tenants import data_dir_option
from mantle.cluster.config import load_config
from mantle.cluster.config_lint import findings_of, longest_waits
from mantle.cluster.control_plane.database import FILE_NAME
from mantle.cluster.control_plane.import_file import open_store
from mantle.cluster.control_plane.live import LiveTenants


@click.group("config")
def config_group() -> None:
    """Look at the config."""


@config_group.command()
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="MANTLE_CONFIG",
    help="Config file. Default: built-in settings.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 when there is a warning.")
@data_dir_option
@click.pass_context
@failing_clearly
def check(context: click.Context, config_path: Path | None, strict: bool, data_dir: Path) -> None:
    """Check the config and warn of what will not do what it says.

    Tenants and measured speeds of the data folder are taken into account where there is one.
    """
    config = load_config(config_path)
    given = context.get_parameter_source("data_dir")
    if given is click.core.ParameterSource.DEFAULT:
        data_dir = Path(config.data_dir)
    tenants = [tenant.as_tenant() for tenant in config.tenants]
    speeds = {}
    if (data_dir / FILE_NAME).exists():
        store = open_store(data_dir)
        try:
            tenants = [entry.tenant for entry in LiveTenants(store, config.tenants).entries()]
            speeds = store.speeds()
        finally:
            store.close()
    findings = findings_of(config, tenants, speeds)
    for finding in findings:
        click.echo(f"warning: {finding}")
    for wait in longest_waits(config.scheduler, tenants, speeds):
        click.echo(
            f"longest wait in {wait.lane}: {wait.bound_s:.0f} s "
            f"(tenant '{wait.tenant_id}' on '{wait.model_id}')"
        )
    click.echo(f"the config is valid; warnings: {len(findings)}")
    if strict and findings:
        context.exit(1)
