"""`mantle tenants`: make, change and remove tenants, their limits and their API keys.

Keys are shown once, when they are made; only their hashes are stored. A running server sees a
change within a second.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from mantle.admission.directory import hash_api_key
from mantle.admission.port import TenantRecord
from mantle.cli.failing import failing_clearly
from mantle.cli.tenant_options import TenantWish, tenant_options, without, without_lane
from mantle.cluster.capacity import unmeasured
from mantle.cluster.config import ConfigError, load_config
from mantle.cluster.config_checks import problems_of_tenant
from mantle.cluster.config_model import TenantConfig
from mantle.cluster.control_plane.admin import fixed_record, record_of
from mantle.cluster.control_plane.import_file import open_store
from mantle.cluster.control_plane.store import ControlStore
from mantle.core.errors import Conflict
from mantle.core.lane import Lane
from mantle.core.tenant import QueueBound, Quota, Reservation, Tenant
from mantle.gateway.tenant_objects import tenant_object

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("mantle-data"),
    envvar="MANTLE_DATA_DIR",
    show_default=True,
    help="The server's data folder.",
)
config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="MANTLE_CONFIG",
    help="Take the tenants of this config file into account.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def tenants() -> None:
    """Make, list and change tenants, their limits and their API keys."""


@tenants.command()
@click.argument("tenant_id", metavar="ID")
@tenant_options
@config_option
@data_dir_option
@failing_clearly
def add(tenant_id: str, config_path: Path | None, data_dir: Path, **options: Any) -> None:
    """Make a tenant and its first API key, shown once."""
    tenant = _checked(TenantWish(**options).apply(TenantConfig(tenant_id).as_tenant()))
    with _store(data_dir, config_path) as store:
        _refuse_fixed(tenant_id, store)
        store.add(tenant)
        api_key = store.add_key(tenant_id)
        _warn_unmeasured(tenant, store)
    click.echo(f"tenant '{tenant_id}' is made; its API key, shown only now:", err=True)
    click.echo(api_key)


@tenants.command("set")
@click.argument("tenant_id", metavar="ID")
@tenant_options
@click.option("--all-models", is_flag=True, help="Let it use every model again.")
@click.option("--no-quota", metavar="MODEL", help="Lift its quota of a model.")
@click.option("--no-reserve", metavar="MODEL", help="End its reservation of a model.")
@click.option(
    "--no-queue", type=click.Choice([lane.value for lane in Lane]), help="As every tenant there."
)
@config_option
@data_dir_option
@failing_clearly
def set_tenant(
    tenant_id: str,
    all_models: bool,
    no_quota: str | None,
    no_reserve: str | None,
    no_queue: str | None,
    config_path: Path | None,
    data_dir: Path,
    **options: Any,
) -> None:
    """Change a tenant; what no option names stays as it is."""
    wish = TenantWish(**options)

    def edit(tenant: Tenant) -> Tenant:
        lifted: dict[str, Any] = {"models": None} if all_models else {}
        if no_quota is not None:
            lifted["quotas"] = without(tenant.quotas, no_quota)
        if no_reserve is not None:
            lifted["reservations"] = without(tenant.reservations, no_reserve)
        if no_queue is not None:
            lifted["queues"] = without_lane(tenant.queues, Lane(no_queue))
        return _checked(wish.apply(dataclasses.replace(tenant, **lifted)))

    with _store(data_dir, config_path) as store:
        _refuse_fixed(tenant_id, store)
        changed = store.change(tenant_id, edit)
        _show(record_of(changed))
        if wish.reserve is not None:
            _warn_unmeasured(changed.tenant, store)


@tenants.command()
@click.argument("tenant_id", metavar="ID")
@data_dir_option
@failing_clearly
def key(tenant_id: str, data_dir: Path) -> None:
    """Make one more API key for a tenant, shown once."""
    with _store(data_dir) as store:
        click.echo(store.add_key(tenant_id))


@tenants.command()
@click.argument("tenant_id", metavar="ID")
@click.argument("hash_prefix", metavar="HASH")
@data_dir_option
@failing_clearly
def revoke(tenant_id: str, hash_prefix: str, data_dir: Path) -> None:
    """Revoke the API keys of a tenant whose hash begins with HASH (see `show`)."""
    if len(hash_prefix) < 6:
        raise click.UsageError("give at least the first 6 digits of the hash")
    with _store(data_dir) as store:
        count = store.revoke_keys(tenant_id, hash_prefix)
    if count == 0:
        raise click.ClickException(f"tenant '{tenant_id}' has no key in force with such a hash")
    click.echo(f"{count} key revoked" if count == 1 else f"{count} keys revoked")


@tenants.command()
@click.argument("tenant_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_dir_option
@failing_clearly
def remove(tenant_id: str, yes: bool, data_dir: Path) -> None:
    """Remove a tenant and all its keys; its running requests end by themselves."""
    if not yes:
        click.confirm(f"Remove tenant '{tenant_id}' and its keys?", abort=True, err=True)
    with _store(data_dir) as store:
        store.remove(tenant_id)
    click.echo(f"tenant '{tenant_id}' is removed")


@tenants.command()
@click.argument("tenant_id", metavar="ID")
@json_option
@config_option
@data_dir_option
@failing_clearly
def show(tenant_id: str, as_json: bool, config_path: Path | None, data_dir: Path) -> None:
    """Show one tenant with its limits, reservations and keys; --config: one of that file too."""
    fixed = {tenant.id: tenant for tenant in load_config(config_path).tenants}
    if tenant_id in fixed:
        record = fixed_record(fixed[tenant_id])
    else:
        with _store(data_dir) as store:
            record = record_of(store.find(tenant_id))
    if as_json:
        click.echo(json.dumps(tenant_object(record), indent=1))
    else:
        _show(record)


@tenants.command("list")
@json_option
@config_option
@data_dir_option
@failing_clearly
def list_tenants(as_json: bool, config_path: Path | None, data_dir: Path) -> None:
    """List all tenants; those of a config file are shown with --config, as read-only."""
    records = [fixed_record(t) for t in load_config(config_path).tenants]
    with _store(data_dir) as store:
        records += [record_of(stored) for stored in store.snapshot().tenants]
    if as_json:
        click.echo(json.dumps([tenant_object(record) for record in records], indent=1))
        return
    if not records:
        click.echo("no tenants yet; `mantle tenants add ID` makes one")
    for record in records:
        click.echo(_line(record))


@tenants.command("hash")
def hash_key() -> None:
    """Read an API key without showing it and print its hash for `api_key_sha256` in a config."""
    click.echo(hash_api_key(click.prompt("API key", hide_input=True, err=True)))


@contextlib.contextmanager
def _store(data_dir: Path, config_path: Path | None = None) -> Iterator[ControlStore]:
    """The tables; beside the tenants of a config, whose reservations count too."""
    fixed = [tenant.as_tenant() for tenant in load_config(config_path).tenants]
    store = open_store(data_dir)
    store.beside = fixed
    try:
        yield store
    finally:
        store.close()


def _refuse_fixed(tenant_id: str, store: ControlStore) -> None:
    if tenant_id in {tenant.id for tenant in store.beside}:
        raise Conflict(
            f"tenant '{tenant_id}' is in the config file and read-only here",
            hint="change the config and restart",
        )


def _warn_unmeasured(tenant: Tenant, store: ControlStore) -> None:
    for warning in unmeasured(tenant, store.speeds()):
        click.echo(f"Warning: {warning}", err=True)


def _checked(tenant: Tenant) -> Tenant:
    problems = problems_of_tenant(tenant)
    if problems:
        raise ConfigError("\n".join(problems))
    return tenant


def _line(record: TenantRecord) -> str:
    tenant = record.tenant
    keys = " ".join(k.id[:12] for k in record.keys if k.revoked_s is None) or "no key"
    models = "all models" if tenant.models is None else ", ".join(sorted(tenant.models))
    ordered: list[Lane] = sorted(tenant.lanes, key=lambda lane: lane.rank)
    lanes = ", ".join(ordered)
    fields = [tenant.id, f"weight {tenant.weight:g}", lanes, models, f"keys: {keys}"]
    if record.is_read_only:
        fields.append("read-only (config)")
    return "\t".join(fields)


def _show(record: TenantRecord) -> None:
    click.echo(_line(record))
    for quota in record.tenant.quotas:
        click.echo(f"  quota {quota.model_id}: {_quota_text(quota)}")
    for bought in record.tenant.reservations:
        click.echo(f"  reserved {bought.model_id}: {_tokens_text(bought)}")
    for bound in record.tenant.queues:
        click.echo(f"  queue {bound.lane}: {_bound_text(bound)} may wait")
    for api_key in record.keys:
        if record.is_read_only:  # the config does not say when it was made
            click.echo(f"  key {api_key.id[:12]} in force")
            continue
        state = "in force" if api_key.revoked_s is None else f"revoked {_day(api_key.revoked_s)}"
        name = f"{api_key.prefix}… " if api_key.prefix else ""
        click.echo(f"  key {api_key.id[:12]} {name}made {_day(api_key.created_s)}, {state}")


def _quota_text(quota: Quota) -> str:
    text = _tokens_text(quota)
    if quota.concurrent_max is not None:
        text = ", ".join(filter(None, [text, f"{quota.concurrent_max} at once"]))
    return text


def _bound_text(bound: QueueBound) -> str:
    named = {"requests": bound.requests_max, "tokens": bound.tokens_max}
    return ", ".join(f"{value} {name}" for name, value in named.items() if value is not None)


def _tokens_text(limit: Quota | Reservation) -> str:
    named = {"input": limit.input_tokens_per_min, "output": limit.output_tokens_per_min}
    parts = [f"{value} {name}" for name, value in named.items() if value is not None]
    return f"{' + '.join(parts)} tokens per minute" if parts else ""


def _day(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")
