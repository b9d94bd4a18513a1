"""Can an operator, and nobody else, change tenants over HTTP? On the real control plane."""

import pytest
from gateway_fakes import KEY, Harness

from mantle.admission.directory import Directory
from mantle.cluster.capacity import Speed, SpeedMeter
from mantle.cluster.config_model import TenantConfig
from mantle.cluster.control_plane.admin import ControlPlaneAdmin
from mantle.cluster.control_plane.import_file import open_store
from mantle.cluster.control_plane.live import LiveTenants
from mantle.cluster.control_plane.speeds import SpeedBook
from mantle.core.errors import Unauthenticated
from mantle.core.ids import ModelId

TENANTS = "/admin/v1/tenants"


class Operator:
    """A gateway with an admin API, and the admin key."""

    def __init__(self, tmp_path):
        self.store = open_store(tmp_path)
        self.key = self.store.replace_admin_key()
        self.live = LiveTenants(self.store, [TenantConfig("fixed", api_key_sha256=["a" * 64])])
        self.directories = []
        self.live.apply = self.directories.append
        self.harness = Harness(admin=ControlPlaneAdmin(self.live))

    async def call(self, method, path, body=None, **kwargs):
        return await self.harness.call(path, body, method=method, **{"key": self.key, **kwargs})

    def directory(self):
        """What is in force now."""
        return Directory(self.live.entries())


@pytest.fixture
def operator(tmp_path):
    operator = Operator(tmp_path)
    yield operator
    operator.harness.executor.shutdown()
    operator.store.close()


async def make(operator, **fields):
    reply = await operator.call("POST", TENANTS, {"id": "acme", **fields})
    assert reply.status == 201, reply.body
    return reply.json()


async def test_without_an_admin_key_the_urls_do_not_exist(tmp_path):
    store = open_store(tmp_path)
    for admin in (None, ControlPlaneAdmin(LiveTenants(store))):
        harness = Harness(admin=admin)
        assert (await harness.get(TENANTS)).status == 404
        assert (await harness.get(TENANTS, key=None)).status == 404
        harness.executor.shutdown()
    store.close()


@pytest.mark.parametrize("key", [None, KEY, "mk-wrong"])
async def test_other_keys_do_not_open_it(operator, key):
    reply = await operator.call("GET", TENANTS, key=key)
    assert reply.status == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"


async def test_admin_key_opens_nothing_else(operator):
    assert (await operator.call("GET", "/v1/models")).status == 401


async def test_new_tenant_works_at_once_and_its_key_is_shown_once(operator):
    made = await make(operator, weight=2, models=["m"])
    assert operator.directory().authenticate(made["key"]).tenant.weight == 2
    assert operator.directories, "the running server heard of it"
    shown = await operator.call("GET", f"{TENANTS}/acme")
    assert shown.json()["keys"][0]["prefix"] == made["key"][:8]
    assert made["key"].encode() not in shown.body
    assert shown.json()["models"] == ["m"]
    assert shown.headers["cache-control"] == "no-store"


async def test_tenant_can_be_made_without_a_key(operator):
    assert "key" not in await make(operator, create_key=False)


async def test_change_touches_only_what_it_names(operator):
    await make(operator, weight=2)
    quota = {"model": "*", "input_tokens_per_min": 9, "concurrent_max": 2}
    reply = await operator.call("PATCH", f"{TENANTS}/acme", {"quotas": [quota], "lanes": ["flex"]})
    value = reply.json()
    assert value["quotas"] == [{**quota, "output_tokens_per_min": None}]
    assert (value["weight"], value["lanes"]) == (2, ["flex"])
    bought = {"model": "m", "input_tokens_per_min": 5, "output_tokens_per_min": 6}
    reply = await operator.call("PATCH", f"{TENANTS}/acme", {"reservations": [bought]})
    assert reply.json()["reservations"] == [bought]
    reply = await operator.call("PATCH", f"{TENANTS}/acme", {"quotas": [], "models": None})
    assert reply.json()["quotas"] == []
    assert reply.json()["reservations"] == [bought]


async def test_removed_tenant_is_locked_out(operator):
    key = (await make(operator))["key"]
    assert (await operator.call("DELETE", f"{TENANTS}/acme")).json()["deleted"] is True
    with pytest.raises(Unauthenticated):
        operator.directory().authenticate(key)
    assert (await operator.call("GET", f"{TENANTS}/acme")).status == 404


async def test_key_is_revoked_and_stays_on_the_list(operator):
    await make(operator)
    made = await operator.call("POST", f"{TENANTS}/acme/keys")
    assert made.status == 201
    path = f"{TENANTS}/acme/keys/{made.json()['id']}"
    assert (await operator.call("DELETE", path)).status == 200
    with pytest.raises(Unauthenticated):
        operator.directory().authenticate(made.json()["key"])
    keys = (await operator.call("GET", f"{TENANTS}/acme/keys")).json()["data"]
    assert len(keys) == 2
    assert [key["revoked_at"] is None for key in keys].count(True) == 1
    assert (await operator.call("DELETE", path)).status == 404


async def test_short_beginning_of_a_key_id_revokes_nothing(operator):
    key = (await make(operator))["keys"][0]["id"]
    assert (await operator.call("DELETE", f"{TENANTS}/acme/keys/{key[:8]}")).status == 404


async def test_list_has_the_tenants_of_the_config_too_and_they_are_read_only(operator):
    await make(operator)
    listed = (await operator.call("GET", TENANTS)).json()["data"]
    assert [(t["id"], t["read_only"]) for t in listed] == [("acme", False), ("fixed", True)]
    path = f"{TENANTS}/fixed"
    for method, url, body in (
        ("PATCH", path, {"weight": 3}),
        ("DELETE", path, None),
        ("POST", f"{path}/keys", None),
        ("POST", TENANTS, {"id": "fixed"}),
    ):
        reply = await operator.call(method, url, body)
        assert reply.status == 409
        assert reply.headers["x-should-retry"] == "false"


async def test_id_twice_is_a_conflict(operator):
    await make(operator)
    assert (await operator.call("POST", TENANTS, {"id": "acme"})).status == 409


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"id": "acme", "wieght": 1}, "wieght"),
        ({"id": "acme", "weight": 0}, "weight"),
        ({"id": "../x"}, "id"),
        ({"id": "acme", "lanes": ["gold"]}, "lanes[0]"),
        ({"id": "acme", "lanes": []}, "lanes"),
        ({"id": "acme", "quotas": [{"model": "*"}]}, "quotas[0]"),
        (
            {"id": "acme", "quotas": [{"model": "m", "concurrent_max": 0}]},
            "quotas[0].concurrent_max",
        ),
        ({}, "id"),
    ],
)
async def test_mistake_is_named(operator, body, param):
    reply = await operator.call("POST", TENANTS, body)
    assert reply.status == 400
    assert reply.json()["error"]["param"] == param
    assert (await operator.call("GET", f"{TENANTS}/acme")).status == 404


async def test_bad_change_changes_nothing(operator):
    await make(operator, weight=2)
    assert (await operator.call("PATCH", f"{TENANTS}/acme", {"weight": -1})).status == 400
    assert (await operator.call("GET", f"{TENANTS}/acme")).json()["weight"] == 2


async def test_wrong_method_and_url(operator):
    reply = await operator.call("PUT", TENANTS, {})
    assert reply.status == 405
    assert reply.headers["allow"] == "GET, POST"
    for path in ("/admin/v1", f"{TENANTS}/a/b/c", f"{TENANTS}/no such"):
        assert (await operator.call("GET", path)).status == 404


async def test_queue_bounds_and_unmeasured_reservations(operator):
    bought = {"model": "m", "input_tokens_per_min": 10, "output_tokens_per_min": 5}
    queue = {"lane": "flex", "requests_max": 3, "tokens_max": None}
    made = await make(operator, reservations=[bought], queues=[queue])
    assert made["queues"] == [queue]
    assert "was not measured yet" in made["warnings"][0]
    changed = await operator.call("PATCH", f"{TENANTS}/acme", {"queues": []})
    assert changed.json()["queues"] == []
    assert changed.json()["warnings"]
    shown = await operator.call("GET", f"{TENANTS}/acme")
    assert "warnings" not in shown.json()


async def test_reservation_beyond_what_was_measured_is_refused_with_both_numbers(operator):
    book = SpeedBook(operator.store.engine, SpeedMeter(), lambda model_id: "s")
    book.save({ModelId("m"): Speed(10.0, 1.0)})
    bought = {"model": "m", "input_tokens_per_min": 300, "output_tokens_per_min": 31}
    reply = await operator.call("POST", TENANTS, {"id": "acme", "reservations": [bought]})
    assert reply.status == 400
    error = reply.json()["error"]
    assert error["param"] == "reservations"
    assert "300 input + 31 output" in error["message"]
    assert "600 input or 60 output" in error["message"]
    assert (await operator.call("GET", f"{TENANTS}/acme")).status == 404
    bought["output_tokens_per_min"] = 30
    assert "warnings" not in await make(operator, reservations=[bought])
