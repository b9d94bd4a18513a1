"""`mantle serve`: start the server; without a config it makes all that it needs."""

import errno
import functools
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import uvloop

from mantle.admission.directory import Directory
from mantle.cli.failing import CommandFailed, failing_clearly
from mantle.cli.tenants import data_dir_option
from mantle.cli.welcome import welcome
from mantle.cluster.config import ConfigError, load_config
from mantle.cluster.config_lint import findings_of
from mantle.cluster.config_model import Config, TenantConfig
from mantle.cluster.control_plane.admin import ControlPlaneAdmin
from mantle.cluster.control_plane.import_file import open_store
from mantle.cluster.control_plane.live import LiveTenants
from mantle.cluster.control_plane.speeds import SpeedBook, forget_stale, setup_of
from mantle.cluster.fail_stop import FailStop
from mantle.cluster.journals import open_journal, remedy
from mantle.cluster.local import FIRST_WORKER, memory_budget_bytes, subprocess_starter
from mantle.cluster.reload import WatchedFile, watch
from mantle.cluster.serving import serve_until_stopped
from mantle.cluster.wiring import Platform, build
from mantle.core.errors import JournalFault
from mantle.core.ids import ModelId
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
    config = _listening(load_config(config_path), host, port)
    given = context.get_parameter_source("data_dir")
    if given is click.core.ParameterSource.DEFAULT:
        data_dir = Path(config.data_dir)
    set_up_logging(level=config.observe.log_level, as_json=config.observe.log_json)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{data_dir}: no data folder can be made there ({error.strerror})"
        raise ConfigError(message) from None
    catalogue = Catalogue(data_dir)
    ensure_demo_model(catalogue, data_dir)
    setup = functools.partial(setup_of, catalogue=catalogue, config=config)
    live, new_key = _tenants(config, data_dir, setup, may_create=config_path is None)
    listener = _listen(config.server.host, config.server.port)
    fail_stop = FailStop()
    platform = build(
        config,
        catalogue=catalogue,
        tenants=live.entries(),
        start_worker=subprocess_starter(config.engine),
        budgets={FIRST_WORKER: memory_budget_bytes(config.pool.memory_mib)},
        journal=open_journal(config.journal, data_dir, fail_stop),
        fail_stop=fail_stop,
        admin=ControlPlaneAdmin(live),
    )
    live.apply = functools.partial(_replace_directory, platform)
    book = SpeedBook(live.store.engine, platform.speeds, setup)
    book.open()
    _warn(config, live)
    _check_models(config, catalogue)
    address = listener.getsockname()
    models = [entry.id for entry in catalogue.entries()]
    click.echo(welcome(address[0], address[1], models=models, new_key=new_key))
    watched = WatchedFile(catalogue.path, catalogue.reload)
    watched.arm()
    try:
        uvloop.run(
            serve_until_stopped(
                platform,
                listener,
                shutdown_s_max=config.server.shutdown_s_max,
                beside=[watch([watched]), live.watch(), book.watch()],
            )
        )
    except JournalFault as fault:
        raise CommandFailed(
            f"journal: {fault.message}; nothing is acknowledged any more. "
            f"{remedy(config.journal, data_dir)}"
        ) from None
    finally:
        live.store.close()


def _listening(config: Config, host: str | None, port: int | None) -> Config:
    """The config, with the address of the command line."""
    server = msgspec.structs.replace(
        config.server,
        host=host or config.server.host,
        port=config.server.port if port is None else port,
    )
    return msgspec.structs.replace(config, server=server)


def _tenants(
    config: Config, data_dir: Path, setup: Callable[[ModelId], str], *, may_create: bool
) -> tuple[LiveTenants, str | None]:
    """All tenants; where there is none, the first one and its key, which is shown only once.

    Raises `ConfigError` when nobody could use the server.
    """
    store = open_store(data_dir)
    new_key: str | None = None
    if may_create and not config.tenants and not store.snapshot().tenants:
        store.add(TenantConfig("default").as_tenant())
        new_key = store.add_key("default")
    forget_stale(store.engine, setup)
    live = LiveTenants(store, config.tenants)
    live.check_start()
    return live, new_key


def _check_models(config: Config, catalogue: Catalogue) -> None:
    """Raises `ConfigError` for models that the config names and nobody added."""
    named = {"pool.preload": config.pool.preload or [], "engines": list(config.engines)}
    for key, names in named.items():
        for name in names:
            if catalogue.find(name) is None:
                known = ", ".join(entry.id for entry in catalogue.entries()) or "none"
                raise ConfigError(
                    f"{key}: there is no model '{name}' (known: {known}); "
                    "`mantle models add` adds one"
                )


def _warn(config: Config, live: LiveTenants) -> None:
    """Say in the log what `mantle config check` says."""
    tenants = [entry.tenant for entry in live.entries()]
    for finding in findings_of(config, tenants, live.store.speeds()):
        log.warning("config: %s", finding)


def _replace_directory(platform: Platform, directory: Directory) -> None:
    platform.admission.directory = directory


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        remedy = "choose another with --port" if taken else "check --host"
        reason = (error.strerror or "not possible").lower()
        raise CommandFailed(f"can not listen on {host}:{port}: {reason}; {remedy}") from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener
