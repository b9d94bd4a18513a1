"""`mantle admin`: the key that opens the admin API of a server."""

from pathlib import Path

import click

from mantle.cli.failing import failing_clearly
from mantle.cli.tenants import data_dir_option
from mantle.cluster.control_plane.import_file import open_store


@click.group()
def admin() -> None:
    """Open the admin API (/admin/v1): without an admin key it does not exist."""


@admin.command()
@data_dir_option
@failing_clearly
def key(data_dir: Path) -> None:
    """Make the admin key, shown once; the one before is revoked."""
    store = open_store(data_dir)
    try:
        click.echo(store.replace_admin_key())
    finally:
        store.close()
