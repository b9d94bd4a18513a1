"""What did the operator decide? One file, parsed once, every mistake named with its remedy.

Invariant: a `Config` that `load_config` returns is valid as a whole; unknown keys are errors, not
ignored.
"""

import difflib
import re
from pathlib import Path

import msgspec
import yaml

from mantle.cluster.config_checks import problems_of
from mantle.cluster.config_model import (
    Config,
    CostConfig,
    LaneConfig,
    ObserveConfig,
    PoolConfig,
    QueueConfig,
    QuotaConfig,
    ReservationConfig,
    SchedulerConfig,
    ServerConfig,
    TenantConfig,
)
from mantle.engine.port import EngineSettings
from mantle.gateway.parts import GatewaySettings
from mantle.pool.placement import PlacementRules


class ConfigError(Exception):
    """The config can not be used; the message names file, key and remedy."""


def load_config(path: Path | None) -> Config:
    """Read and check a YAML file; None gives the defaults. Raises `ConfigError`."""
    if path is None:
        return Config()
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can not be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {_one_line(str(error))}") from None
    try:
        config = msgspec.convert({} if raw is None else raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(str(error))}") from None
    problems = problems_of(config)
    if problems:
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems))
    return config


def _explain(message: str) -> str:
    """msgspec's message, with our way of writing keys and a remedy for unknown ones."""
    path_match = re.search(r" - at `\$\.?([^`]*)`$", message)
    where = path_match.group(1) if path_match else ""
    text = message[: path_match.start()] if path_match else message
    unknown = re.search(r"contains unknown field `([^`]+)`", text)
    if unknown is None:
        return f"{where or 'the file'}: {text[0].lower()}{text[1:]}"
    name = unknown.group(1)
    key = f"{where}.{name}" if where else name
    close = difflib.get_close_matches(name, _known_keys(), n=1)
    remedy = f"did you mean '{close[0]}'?" if close else "see mantle.example.yaml for all keys"
    return f"{key}: unknown key; {remedy}"


def _known_keys() -> list[str]:
    structs = (
        Config, ServerConfig, GatewaySettings, EngineSettings, PoolConfig, PlacementRules,
        SchedulerConfig, LaneConfig, CostConfig, TenantConfig, QuotaConfig, ReservationConfig,
        QueueConfig, ObserveConfig,
    )  # fmt: skip
    return [name for struct in structs for name in struct.__struct_fields__]


def _one_line(text: str) -> str:
    return " ".join(text.split())
