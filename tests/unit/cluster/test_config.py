"""Does every mistake in a config get its file, key and remedy?"""

from pathlib import Path

import msgspec
import pytest
import yaml

from mantle.cluster.config import ConfigError, load_config
from mantle.cluster.config_model import Config
from mantle.core.ids import ModelId
from mantle.core.lane import Lane
from mantle.core.tenant import Quota, Reservation
from mantle.scheduler.rules import default_bounds

EXAMPLE = Path(__file__).parents[3] / "mantle.example.yaml"


def config_of(tmp_path, text):
    path = tmp_path / "mantle.yaml"
    path.write_text(text)
    return load_config(path)


def error_of(tmp_path, text):
    with pytest.raises(ConfigError) as error:
        config_of(tmp_path, text)
    assert "mantle.yaml: " in str(error.value)
    return str(error.value)


def test_no_file_gives_the_defaults():
    assert load_config(None) == Config()


def test_empty_file_gives_the_defaults(tmp_path):
    assert config_of(tmp_path, "") == Config()


def test_example_states_the_defaults():
    config = load_config(EXAMPLE)
    assert config.server == Config().server
    assert config.gateway == Config().gateway
    assert config.engine == Config().engine
    assert config.pool.placement == Config().pool.placement
    assert config.observe == Config().observe
    assert config.scheduler.bounds() == default_bounds()
    assert config.scheduler.floors() == Config().scheduler.floors()
    assert config.scheduler.cost == Config().scheduler.cost


def test_example_names_every_key():
    schema = msgspec.json.schema(Config)["$defs"]
    keys = {key for struct in schema.values() for key in struct.get("properties", ())}
    written = set()

    def walk(value):
        if isinstance(value, dict):
            written.update(value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(yaml.safe_load(EXAMPLE.read_text()))
    assert keys - written == set()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("serber: {}", "serber: unknown key; did you mean 'server'?"),
        ("server: {prot: 1}", "server.prot: unknown key; did you mean 'port'?"),
        ("server: {port: many}", "server.port: expected `int`"),
        ("server: {port: 70000}", "server.port: must be 0…65535"),
        ("engine: {slots: 0}", "engine.slots: must be 1…256"),
        ("engine: {kv_layout: odd}", "engine.kv_layout: must be streams or unified"),
        ("engines: {m: {batch_tokens: 1}}", "engines.m.batch_tokens: must be at least"),
        ("scheduler: {lanes: {flex: {floor: 0.9}}}", "the floors add up to 1.10"),
        ("scheduler: {lanes: {flex: {wait_s_max: 0}}}", "scheduler.lanes.flex.wait_s_max"),
        ("scheduler: {lanes: {gold: {}}}", "scheduler.lanes"),
        ("tenants: [{id: a}, {id: a}]", "tenants[1].id: 'a' is there twice"),
        ("tenants: [{id: '../x'}]", "tenants[0].id: use 1…63"),
        ("tenants: [{id: a, weight: 0}]", "tenants[0].weight: must be above 0"),
        ("tenants: [{id: a, api_key_sha256: [k]}]", "mantle tenants hash"),
        ("tenants: [{id: a, quotas: [{model: m}]}]", "tenants[0].quotas[0]: give at least one"),
        ("tenants: [{id: a, quotas: [{modell: m}]}]", "did you mean 'model'?"),
        (
            "tenants: [{id: a, quotas: [{concurrent_max: 1}, {concurrent_max: 2}]}]",
            "tenants[0].quotas[1].model: '*' is there twice",
        ),
        (
            "tenants: [{id: a, quotas: [{input_tokens_per_min: -1}]}]",
            "tenants[0].quotas[0].input_tokens_per_min: must be 1…",
        ),
        (
            "tenants: [{id: a, reservations: "
            "[{model: '*', input_tokens_per_min: 1, output_tokens_per_min: 1}]}]",
            "tenants[0].reservations[0].model: must name a model",
        ),
        ("tenants: [{id: a, reservations: [{model: m}]}]", "input_tokens_per_min"),
        ("gateway: {ping_s: 60}", "gateway.ping_s: must be above 0 and at most 10"),
        ("observe: {log_level: loud}", "observe.log_level: must be debug"),
        ("a: [", "is not YAML"),
        ("[]", "expected `object`"),
    ],
)
def test_mistake_is_named_with_its_key(tmp_path, text, says):
    assert says in error_of(tmp_path, text)


def test_all_mistakes_are_told_at_once(tmp_path):
    message = error_of(tmp_path, "engine: {slots: 0}\nserver: {port: -1}")
    assert "engine.slots" in message
    assert "server.port" in message


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="can not be read"):
        load_config(tmp_path / "none.yaml")


def test_lane_settings_change_only_what_they_name(tmp_path):
    config = config_of(tmp_path, "scheduler: {lanes: {flex: {floor: 0}}}")
    assert Lane.FLEX not in config.scheduler.floors()
    assert config.scheduler.bounds()[Lane.FLEX].wait_s_max == 3_600


def test_quotas_and_reservations_of_a_tenant_reach_it():
    tenant = load_config(EXAMPLE).tenants[0].as_tenant()
    model = ModelId("smollm2-135m-instruct")
    assert tenant.quota(model) == Quota(model, 100_000, 20_000, 50)
    assert tenant.quota(ModelId("other")) is None
    assert tenant.reservation(model) == Reservation(model, 6_000, 1_200)
