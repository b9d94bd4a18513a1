"""`mantle serve`: start the server; without a config it makes all that it needs."""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import click
import msgspec
import uvicorn
import uvloop

from mantle.admission.directory import Directory, TenantKeys
from mantle.cli.failing import CommandFailed, failing_clearly
from mantle.cli.tenants import data_dir_option
from mantle.cli.welcome import welcome
from mantle.cluster.config import ConfigError, load_config
from mantle.cluster.config_model import Config, TenantConfig
from mantle.cluster.local import FIRST_WORKER, memory_budget_bytes, subprocess_starter
from mantle.cluster.reload import WatchedFile, watch
from mantle.cluster.tenant_file import TenantFile, tenant_keys
from mantle.cluster.wiring import Platform, build
from mantle.observe.logging import set_up_logging
from mantle.pool.catalogue import Catalogue
from mantle.pool.demo_model import ensure_demo_model

log = logging.getLogger("mantle.cli")


@click.command()
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="MANTLE_CONFIG",
    help="Config file (see mantle.example.yaml). Default: built-in settings.",
)
@click.option("--host", help="Address to listen on; overrides the config.")
@click.option("--port", type=int, help="Port to listen on (0: a free one); overrides the config.")
@data_dir_option
@click.pass_context
@failing_clearly
def serve(
    context: click.Context,
    config_path: Path | None,
    host: str | None,
    port: int | None,
    data_dir: Path,
) -> None:
    """Start the server.

    With no config it makes a data folder, a tenant with an API key and the demo model, and prints
    how to point an OpenAI or Anthropic client at it.
    """
    config = load_config(config_path)
    if host is not None or port is not None:
        server = msgspec.structs.replace(
            config.server,
            host=host or config.server.host,
            port=config.server.port if port is None else port,
        )
        config = msgspec.structs.replace(config, server=server)
    given = context.get_parameter_source("data_dir")
    if given is click.core.ParameterSource.DEFAULT:
        data_dir = Path(config.data_dir)
    set_up_logging(level=config.observe.log_level, as_json=config.observe.log_json)
    data_dir.mkdir(parents=True, exist_ok=True)
    catalogue = Catalogue(data_dir)
    ensure_demo_model(catalogue, data_dir)
    new_key = _first_tenant(config, data_dir, may_create=config_path is None)
    tenants = _tenants_in_force(config, data_dir)
    listener = _listen(config.server.host, config.server.port)
    platform = build(
        config,
        catalogue=catalogue,
        tenants=tenants,
        start_worker=subprocess_starter(config.engine),
        budgets={FIRST_WORKER: memory_budget_bytes(config.pool.memory_mib)},
    )
    address = listener.getsockname()
    models = [entry.id for entry in catalogue.entries()]
    click.echo(welcome(address[0], address[1], models=models, new_key=new_key))
    watched = [
        WatchedFile(catalogue.path, catalogue.reload),
        WatchedFile(
            data_dir / "tenants.json", lambda: _replace_tenants(platform, config, data_dir)
        ),
    ]
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(platform, listener, config, watched))


async def _serve(
    platform: Platform, listener: socket.socket, config: Config, watched: list[WatchedFile]
) -> None:
    server = uvicorn.Server(
        uvicorn.Config(
            platform.app,
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(config.server.shutdown_s_max),
        )
    )
    async with _running(platform, watched):
        await server.serve(sockets=[listener])
        log.info("shutting down")


@contextlib.asynccontextmanager
async def _running(platform: Platform, watched: list[WatchedFile]) -> AsyncIterator[None]:
    await platform.start()
    for file in watched:
        file.arm()
    watcher = asyncio.create_task(watch(watched))
    try:
        yield
    finally:
        watcher.cancel()
        await platform.close()


def _first_tenant(config: Config, data_dir: Path, *, may_create: bool) -> str | None:
    """Make the first tenant where there is none; returns its key, which is shown only once."""
    file = TenantFile(data_dir)
    if config.tenants or file.read() or not may_create:
        return None
    file.add(TenantConfig("default"))
    return file.add_key("default")


def _tenants_in_force(config: Config, data_dir: Path) -> list[TenantKeys]:
    """All tenants. Raises `ConfigError` when nobody could use the server."""
    tenants = tenant_keys(config, TenantFile(data_dir).read())
    if not tenants:
        raise ConfigError("there is no tenant; `mantle tenants add ID` makes one with a key")
    if not any(tenant.key_hashes for tenant in tenants):
        where = "" if _is_loopback(config.server.host) else " beyond this machine"
        raise ConfigError(
            f"no tenant has an API key, so nobody could be told apart{where}; "
            "`mantle tenants key ID` makes one"
        )
    return tenants


def _replace_tenants(platform: Platform, config: Config, data_dir: Path) -> None:
    platform.admission.directory = Directory(_tenants_in_force(config, data_dir))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        remedy = "choose another with --port" if port else "check --host"
        reason = (error.strerror or "not possible").lower()
        raise CommandFailed(f"can not listen on {host}:{port}: {reason}; {remedy}") from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener
