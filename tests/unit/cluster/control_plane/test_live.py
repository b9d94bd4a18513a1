"""Does a running server follow the tables, and keep what it has when it can not?"""

import asyncio

import msgspec
import pytest

from mantle.admission.directory import hash_api_key, new_api_key
from mantle.cluster.config import ConfigError
from mantle.cluster.config_model import QuotaConfig, TenantConfig
from mantle.cluster.control_plane import live as live_module
from mantle.cluster.control_plane.import_file import open_store
from mantle.cluster.control_plane.live import LiveTenants
from mantle.core.errors import Unauthenticated
from mantle.core.ids import TenantId
from mantle.core.tenant import Tenant

ACME = Tenant(TenantId("acme"))


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def follow(store):
    def make(*from_config):
        live = LiveTenants(store, from_config)
        live.seen = []
        live.apply = live.seen.append
        return live

    return make


async def test_change_by_another_process_is_followed(store, follow, tmp_path):
    live = follow()
    other = open_store(tmp_path)
    other.add(ACME)
    key = other.add_key("acme")
    await live.refresh()
    assert live.seen[-1].authenticate(key).tenant == ACME
    await live.refresh()
    assert len(live.seen) == 1, "no change, no work"
    other.revoke_keys("acme", hash_api_key(key))
    await live.refresh()
    with pytest.raises(Unauthenticated):
        live.seen[-1].authenticate(key)
    other.close()


async def test_watching_sees_a_change_by_itself(store, follow):
    assert live_module.CHECK_EVERY_S < 1
    live = follow()
    heard = asyncio.Event()
    live.apply = lambda directory: heard.set()
    watching = asyncio.create_task(live.watch())
    store.add(ACME)
    await asyncio.wait_for(heard.wait(), 5)
    watching.cancel()


async def test_tenant_of_the_config_wins_over_one_made_later(store, follow):
    key = new_api_key()
    live = follow(TenantConfig("acme", weight=5, api_key_sha256=[hash_api_key(key)]))
    store.add(ACME)
    await live.refresh()
    assert live.seen[-1].authenticate(key).tenant.weight == 5
    assert [t.id for t in live.seen[-1].tenants()] == ["acme"]
    with pytest.raises(ConfigError, match="in the config and in the data folder"):
        live.check_start()


def test_server_that_nobody_could_use_does_not_start(store, follow):
    with pytest.raises(ConfigError, match="no tenant"):
        follow().check_start()
    store.add(ACME)
    with pytest.raises(ConfigError, match="no tenant has an API key"):
        follow().check_start()
    store.add_key("acme")
    follow().check_start()


def test_admin_key_alone_is_enough_to_start(store, follow):
    store.replace_admin_key()
    follow().check_start()


def test_old_tenants_file_is_taken_over_once(tmp_path):
    old = [
        TenantConfig(
            "a", weight=3, api_key_sha256=["a" * 64], quotas=[QuotaConfig(concurrent_max=2)]
        ),
        TenantConfig("b"),
    ]
    path = tmp_path / "tenants.json"
    path.write_bytes(msgspec.json.encode(old))
    store = open_store(tmp_path)
    assert [s.tenant for s in store.snapshot().tenants] == [t.as_tenant() for t in old]
    assert store.find("a").key_hashes == ("a" * 64,)
    assert not path.exists()
    store.remove("b")
    store.close()
    store = open_store(tmp_path)
    assert len(store.snapshot().tenants) == 1
    store.close()


def test_takeover_that_was_cut_short_goes_on(tmp_path):
    path = tmp_path / "tenants.json"
    path.write_bytes(msgspec.json.encode([TenantConfig("a")]))
    open_store(tmp_path).close()
    path.write_bytes(msgspec.json.encode([TenantConfig("a", weight=9), TenantConfig("b")]))
    store = open_store(tmp_path)
    assert [(s.tenant.id, s.tenant.weight) for s in store.snapshot().tenants] == [
        ("a", 1),
        ("b", 1),
    ]
    store.close()


def test_broken_tenants_file_is_named_with_a_remedy(tmp_path):
    (tmp_path / "tenants.json").write_text("{")
    with pytest.raises(ConfigError, match="mend it"):
        open_store(tmp_path)
