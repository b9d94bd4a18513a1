"""Are tenants kept, changed in one step, and their keys not?"""

import threading

import pytest

from mantle.admission.directory import Directory, TenantKeys, hash_api_key
from mantle.cluster.control_plane.database import open_database
from mantle.cluster.control_plane.store import ControlStore
from mantle.core.errors import Conflict, NotFound
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import ANY_MODEL, Quota, Reservation, Tenant
from mantle.testing.sim_clock import SimClock

M = ModelId("m")
ACME = Tenant(
    TenantId("acme"),
    weight=2.5,
    models=frozenset({M, ModelId("n")}),
    lanes=frozenset({Lane.FLEX, Lane.STANDARD}),
    quotas=(Quota(ANY_MODEL, 1, None, 3), Quota(M, None, 10**12, None)),
    reservations=(Reservation(M, 5, 6),),
)
PLAIN = Tenant(TenantId("plain"))


@pytest.fixture
def store(tmp_path):
    store = ControlStore(open_database(tmp_path), SimClock())
    yield store
    store.close()


def again(tmp_path):
    """What another process sees."""
    other = ControlStore(open_database(tmp_path))
    snapshot = other.snapshot()
    other.close()
    return snapshot


def test_what_is_stored_is_read_equal_by_another_process(store, tmp_path):
    store.add(ACME)
    store.add(PLAIN)
    assert [stored.tenant for stored in again(tmp_path).tenants] == [ACME, PLAIN]


def test_key_works_and_is_not_stored(store, tmp_path):
    store.add(ACME)
    key = store.add_key("acme")
    (stored,) = again(tmp_path).tenants
    directory = Directory([TenantKeys(stored.tenant, stored.key_hashes)])
    assert directory.authenticate(key).tenant == ACME
    for path in tmp_path.iterdir():
        assert key.encode() not in path.read_bytes()


def test_database_is_for_its_owner_only(store, tmp_path):
    store.add(ACME)
    files = list(tmp_path.iterdir())
    assert {path.name for path in files} >= {"control.db", "control.db-wal"}
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


def test_revoked_key_is_out_of_force_and_stays_known(store):
    store.add(ACME)
    first, second = store.add_key("acme"), store.add_key("acme")
    assert store.revoke_keys("acme", hash_api_key(first)[:8]) == 1
    assert store.revoke_keys("acme", hash_api_key(first)[:8]) == 0
    stored = store.find("acme")
    assert stored.key_hashes == (hash_api_key(second),)
    assert {key.prefix for key in stored.keys} == {first[:8], second[:8]}


def test_key_of_others_can_not_be_revoked(store):
    store.add(ACME)
    store.add(PLAIN)
    key = store.add_key("acme")
    assert store.revoke_keys("plain", hash_api_key(key)) == 0


def test_id_twice_is_refused_and_the_first_stays(store):
    store.add(ACME)
    with pytest.raises(Conflict):
        store.add(Tenant(ACME.id))
    assert store.find("acme").tenant == ACME


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.find("nobody"),
        lambda store: store.add_key("nobody"),
        lambda store: store.remove("nobody"),
        lambda store: store.revoke_keys("nobody", "abcdef"),
        lambda store: store.change("nobody", lambda tenant: tenant),
    ],
)
def test_nobody_is_not_found(store, call):
    with pytest.raises(NotFound):
        call(store)


def test_removed_tenant_leaves_nothing_and_its_id_is_free(store):
    store.add(ACME)
    store.add_key("acme")
    store.remove("acme")
    store.add(Tenant(ACME.id))
    stored = store.find("acme")
    assert (stored.tenant, stored.keys) == (Tenant(ACME.id), ())


def test_failed_change_is_undone_and_not_counted(store):
    store.add(ACME)
    before = store.change_count()

    def edit(tenant):
        raise Conflict("no")

    with pytest.raises(Conflict):
        store.change("acme", edit)
    assert store.change_count() == before
    assert store.find("acme").tenant == ACME


def test_every_change_is_counted(store):
    counts = [store.change_count()]
    for change in (
        lambda: store.add(ACME),
        lambda: store.add_key("acme"),
        lambda: store.change("acme", lambda tenant: tenant),
        lambda: store.revoke_keys("acme", ""),
        lambda: store.remove("acme"),
        store.replace_admin_key,
    ):
        change()
        counts.append(store.change_count())
    assert counts == sorted(set(counts))


def test_changes_of_many_at_once_are_all_kept(store, tmp_path):
    store.add(PLAIN)

    def change_from_another_connection(number):
        other = ControlStore(open_database(tmp_path))

        def edit(tenant):
            quota = Quota(ModelId(f"m{number}"), concurrent_max=1)
            return Tenant(tenant.id, quotas=(*tenant.quotas, quota))

        other.change("plain", edit)
        other.close()

    threads = [threading.Thread(target=change_from_another_connection, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.find("plain").tenant.quotas) == 8


def test_new_admin_key_replaces_the_one_before(store):
    first, second = store.replace_admin_key(), store.replace_admin_key()
    assert store.snapshot().admin_key_hashes == {hash_api_key(second)}
    assert first != second
