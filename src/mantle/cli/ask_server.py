"""How does a command ask a running server? One GET of the admin API, with the admin key.

Invariant: whatever is wrong, the operator reads one line that says so and what helps; the key goes
to the named server only, past any proxy.
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from mantle.cli.failing import CommandFailed
from mantle.cli.welcome import base_url_of
from mantle.cluster.config import load_config

T = TypeVar("T")

ANSWER_S_MAX = 15.0

url_option = click.option(
    "--url",
    envvar="MANTLE_URL",
    help="The server's address. Default: the config's, else http://127.0.0.1:8000.",
)
admin_key_option = click.option(
    "--admin-key",
    envvar="MANTLE_ADMIN_KEY",
    help="Key of the admin API; better in MANTLE_ADMIN_KEY, where no other user sees it.",
)
Command = Callable[..., Any]


def asking_options(command: Command) -> Command:
    """The options of every command that asks a server."""
    return url_option(admin_key_option(command))


def address_of(url: str | None, config_path: Path | None) -> str:
    """Where the server is. Raises `CommandFailed` for what is no address."""
    if url is None:
        server = load_config(config_path).server
        return base_url_of(server.host, server.port)
    if not url.startswith(("http://", "https://")):
        raise CommandFailed(f"--url: '{url}' is no address; it begins with http:// or https://")
    return url.rstrip("/")


def ask(address: str, path: str, admin_key: str | None, kind: type[T]) -> tuple[T, bytes]:
    """What the server answers, and its very words. Raises `CommandFailed`."""
    if not admin_key:
        raise CommandFailed(
            "the admin API needs its key: put it into MANTLE_ADMIN_KEY "
            "(`mantle admin key` makes a new one, which replaces the one before)"
        )
    if not (admin_key.isascii() and admin_key.isprintable()):
        raise CommandFailed("the admin key has characters that no key has")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(address + path)
        request.add_unredirected_header("authorization", f"Bearer {admin_key}")
        with opener.open(request, timeout=ANSWER_S_MAX) as answer:
            body: bytes = answer.read()
    except urllib.error.HTTPError as error:
        raise _refused(address, error) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise CommandFailed(
            f"no server answers at {address} ({reason}); is `mantle serve` running there? "
            "--url names another address"
        ) from None
    try:
        return msgspec.json.decode(body, type=kind), body
    except msgspec.MsgspecError:
        raise CommandFailed(f"what is at {address} does not answer as Mantle does") from None


def _refused(address: str, error: urllib.error.HTTPError) -> CommandFailed:
    if error.code == 401:
        return CommandFailed(
            f"the server at {address} does not take this admin key; `mantle admin key` makes a "
            "new one"
        )
    if error.code == 404:
        return CommandFailed(
            f"the server at {address} has no such admin API; while there is no admin key it has "
            "none: `mantle admin key` makes one"
        )
    return CommandFailed(f"the server at {address} answers {error.code} {error.reason}")
