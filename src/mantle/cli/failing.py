"""How does a command fail? With one clear line and exit code 2, never with a stack trace."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from mantle.cluster.config import ConfigError
from mantle.core.errors import MantleError

P = ParamSpec("P")
R = TypeVar("R")


class CommandFailed(click.ClickException):
    """What the user did can not be done; the message says why and what helps."""

    exit_code = 2


def failing_clearly(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors that an operator can mend into one message."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ConfigError as error:
            raise CommandFailed(str(error)) from None
        except MantleError as error:
            hint = f" ({error.hint})" if error.hint else ""
            raise CommandFailed(f"{error.message}{hint}") from None

    return wrapped
