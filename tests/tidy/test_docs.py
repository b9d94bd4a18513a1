"""Do the reference pages name all there is, and do links lead somewhere? Held against the code."""

import re
import typing
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import click
import msgspec
import pytest

from mantle.cli.main import main
from mantle.cluster.config_model import Config
from mantle.gateway.routes import OPEN_ROUTES, ROUTES
from mantle.gateway.wire_errors import TABLE
from mantle.observe.metrics import Metrics
from tests.tidy.test_coverage_of_docs_and_tests import CLI_PAGE
from tests.tidy.tree import ROOT, our_files, text_of

CONFIG_PAGE, HTTP_PAGE, METRICS_PAGE = (
    f"docs/reference/{name}.md" for name in ("config", "http", "metrics")
)
_HOLDERS = {"lanes": "LANE", "engines": "MODEL"}


def config_keys(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key as the config page writes it, with its default."""
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        key = f"{prefix}{field.name}"
        kinds = [hints[field.name], *typing.get_args(hints[field.name])]
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, msgspec.Struct)), 0)
        if typing.get_origin(kinds[0]) is dict:
            key = f"{key}.{_HOLDERS[field.name]}"
        elif typing.get_origin(kinds[0]) is list and inner:
            key = f"{key}[]"
        if inner and field.name != "engines":
            yield from config_keys(inner, f"{key}.")
        else:
            yield key, field.default


def test_config_page_names_every_key_and_its_default():
    rows = dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", text_of(CONFIG_PAGE), re.MULTILINE))
    keys = dict(config_keys(Config))
    assert rows.keys() == keys.keys()
    for key, default in keys.items():
        if isinstance(default, bool | int | float | str):
            shown = str(default).lower() if isinstance(default, bool) else default
            said = rows[key].strip("`")
            assert said == shown or float(said) == shown, f"{key} is {shown} by default"


def test_metrics_page_names_every_metric():
    exposition = Metrics().render()[0].decode()
    real = set(re.findall(r"^# TYPE (\S+)", exposition, re.MULTILINE))
    assert real, "the exposition lists no metric"
    named = set(re.findall(r"^\| `(mantle_\w+)`", text_of(METRICS_PAGE), re.MULTILINE))
    assert named == real


def test_http_page_names_every_route_and_error():
    page = text_of(HTTP_PAGE)
    missing = [path for path in [*ROUTES, *OPEN_ROUTES] if f"`{path}`" not in page]
    codes = {row.openai_code for row in TABLE.values()} - {None}
    missing += [code for code in codes if f"`{code}`" not in page]
    assert not missing, f"{HTTP_PAGE} does not name: {missing}"


def test_cli_page_names_every_option_of_each_command():
    sections = dict(re.findall(r"^## mantle ([a-z ]+)[^\n]*\n(.*?)(?=^## |\Z)", text_of(CLI_PAGE),
                               re.MULTILINE | re.DOTALL))  # fmt: skip
    sections = {name.strip(): text for name, text in sections.items()}
    for name, command in leaves(main):
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                option = parameter.opts[0]
                assert f"`{option}" in sections[name], f"`mantle {name}`: {option}"


def leaves(command: click.Command, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, child in getattr(command, "commands", {}).items():
        if isinstance(child, click.Group):
            yield from leaves(child, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", child


@pytest.mark.parametrize("page", [name for name in our_files() if name.endswith(".md")])
def test_links_lead_to_files_and_headings_that_exist(page):
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    broken = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if is_broken(page, link)]
    assert not broken, f"{page} links to {broken}"


def is_broken(page: str, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return False
    path, _, heading = link.partition("#")
    target = ROOT / PurePosixPath(page).parent / path if path else ROOT / page
    if not target.exists():
        return True
    titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE) if heading else []
    slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
    return bool(heading) and heading not in slugs


def test_broken_links_are_seen():
    assert is_broken("README.md", "docs/nowhere.md")
    assert is_broken("README.md", "docs/reference/http.md#no-such-heading")
    assert not is_broken("README.md", "docs/reference/http.md#headers")
