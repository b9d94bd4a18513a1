"""Do the commands do what they say, and does each mistake get one clear line?"""

import json

import pytest
from click.testing import CliRunner

from mantle.admission.directory import hash_api_key
from mantle.cli.main import main
from mantle.cluster.capacity import Speed, SpeedMeter
from mantle.cluster.control_plane.import_file import open_store
from mantle.cluster.control_plane.speeds import SpeedBook
from mantle.core.ids import ModelId


@pytest.fixture
def mantle(tmp_path):
    def run(*args, fails=False, **kwargs):
        result = CliRunner().invoke(main, [*args], env={"MANTLE_DATA_DIR": str(tmp_path)}, **kwargs)
        assert (result.exit_code != 0) == fails, result.output
        assert "Traceback" not in result.output
        return result

    return run


def shown(mantle, tenant="acme"):
    return json.loads(mantle("tenants", "show", tenant, "--json").stdout)


def test_added_tenant_has_what_was_said_and_a_working_key(mantle, tmp_path):
    key = mantle(
        "tenants", "add", "acme", "--weight", "2", "--lane", "flex", "--model", "m",
        "--quota", "m", "--input-tpm", "100", "--concurrent", "3",
    ).stdout.strip()  # fmt: skip
    value = shown(mantle)
    assert (value["weight"], value["lanes"], value["models"]) == (2.0, ["flex"], ["m"])
    assert value["quotas"] == [
        {"model": "m", "input_tokens_per_min": 100, "output_tokens_per_min": None,
         "concurrent_max": 3}
    ]  # fmt: skip
    store = open_store(tmp_path)
    assert store.find("acme").key_hashes == (hash_api_key(key),)
    store.close()


def test_set_changes_only_what_is_named(mantle):
    mantle("tenants", "add", "acme", "--weight", "2", "--model", "m")
    mantle("tenants", "set", "acme", "--reserve", "m", "--input-tpm", "9", "--output-tpm", "4")
    mantle("tenants", "set", "acme", "--quota", "*", "--concurrent", "1")
    mantle("tenants", "set", "acme", "--quota", "*", "--concurrent", "2")
    value = shown(mantle)
    assert (value["weight"], value["models"]) == (2.0, ["m"])
    assert value["reservations"] == [
        {"model": "m", "input_tokens_per_min": 9, "output_tokens_per_min": 4}
    ]
    assert [quota["concurrent_max"] for quota in value["quotas"]] == [2]
    mantle("tenants", "set", "acme", "--no-quota", "*", "--no-reserve", "m", "--all-models")
    value = shown(mantle)
    assert (value["quotas"], value["reservations"], value["models"]) == ([], [], None)


def test_key_revoke_remove(mantle):
    mantle("tenants", "add", "acme")
    key = mantle("tenants", "key", "acme").stdout.strip()
    mantle("tenants", "revoke", "acme", hash_api_key(key)[:12])
    assert sorted(k["revoked_at"] is None for k in shown(mantle)["keys"]) == [False, True]
    mantle("tenants", "remove", "acme", input="n\n", fails=True)
    mantle("tenants", "remove", "acme", "--yes")
    assert json.loads(mantle("tenants", "list", "--json").stdout) == []


def test_list_marks_tenants_of_the_config(mantle, tmp_path):
    config = tmp_path / "mantle.yaml"
    config.write_text("tenants: [{id: fixed, quotas: [{concurrent_max: 3}]}]")
    mantle("tenants", "add", "acme")
    lines = mantle("tenants", "list", "--config", str(config)).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["fixed", "acme"]
    assert lines[0].endswith("read-only (config)")
    assert "read-only" not in lines[1]


RESERVED = """
tenants:
  - id: fixed
    api_key_sha256: ["{}"]
    reservations: [{{model: m, input_tokens_per_min: 3000, output_tokens_per_min: 240}}]
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "mantle.yaml"
    path.write_text(RESERVED.format("0" * 64))
    return ("--config", str(path))


def test_reservation_of_the_config_is_shown(mantle, config):
    lines = mantle("tenants", "show", "fixed", *config).stdout.splitlines()
    assert lines[0].endswith("read-only (config)")
    assert lines[1:] == [
        "  reserved m: 3000 input + 240 output tokens per minute",
        "  key 000000000000 in force",
    ]
    value = json.loads(mantle("tenants", "show", "fixed", "--json", *config).stdout)
    assert value["reservations"][0]["output_tokens_per_min"] == 240
    assert "no tenant 'fixed'" in mantle("tenants", "show", "fixed", fails=True).output


def test_reservation_of_the_config_counts_when_another_is_bought(mantle, config, tmp_path):
    store = open_store(tmp_path)
    speed = {ModelId("m"): Speed(100.0, 10.0)}  # 6,000 input or 600 output tokens a minute
    SpeedBook(store.engine, SpeedMeter(), lambda _: "setup").save(speed)
    store.close()
    buys = ("--reserve", "m", "--input-tpm", "600", "--output-tpm", "60")
    says = mantle("tenants", "add", "acme", *buys, *config, fails=True).output
    assert "reservations of 'm' add up to 3600 input + 300 output" in says
    mantle("tenants", "add", "acme")
    mantle("tenants", "set", "acme", *buys, *config, fails=True)
    mantle("tenants", "set", "acme", *buys)  # nobody spoke of the config


@pytest.mark.parametrize("command", ["add", "set"])
def test_tenant_of_the_config_can_not_be_changed(mantle, config, command):
    says = mantle("tenants", command, "fixed", "--weight", "2", *config, fails=True).output
    assert "is in the config file and read-only here (change the config and restart)" in says


def test_admin_key_is_made_and_replaced(mantle, tmp_path):
    mantle("admin", "key")
    key = mantle("admin", "key").stdout.strip()
    store = open_store(tmp_path)
    assert store.snapshot().admin_key_hashes == {hash_api_key(key)}
    store.close()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["add", "../x"], "id: use 1…63"),
        (["add", "old"], "exists"),
        (["set", "nobody", "--weight", "1"], "no tenant 'nobody'"),
        (["set", "old", "--weight", "0"], "weight: must be above 0"),
        (["set", "old", "--quota", "m"], "--quota needs"),
        (["set", "old", "--input-tpm", "5"], "which model"),
        (["set", "old", "--reserve", "m", "--input-tpm", "5"], "--reserve needs both"),
        (["set", "old", "--reserve", "*", "--input-tpm", "5", "--output-tpm", "1"], "must name"),
        (["set", "old", "--quota", "m", "--reserve", "m"], "two calls"),
        (["set", "old", "--quota", "m", "--concurrent", "0"], "concurrent_max: must be 1…"),
        (["revoke", "old", "abcdef"], "no key"),
        (["revoke", "old", "abc"], "at least the first 6"),
    ],
)
def test_mistake_gets_one_clear_line(mantle, args, says):
    mantle("tenants", "add", "old")
    assert says in mantle("tenants", *args, fails=True).output
