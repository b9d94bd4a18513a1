"""Are measured speeds kept, for their setup only, and do reservations have to fit them?"""

import asyncio
import contextlib

import pytest
import sqlalchemy as sa

from mantle.cluster.capacity import Speed, SpeedMeter
from mantle.cluster.config import ConfigError
from mantle.cluster.config_model import Config, ReservationConfig, TenantConfig
from mantle.cluster.control_plane.import_file import open_store
from mantle.cluster.control_plane.live import LiveTenants
from mantle.cluster.control_plane.speeds import SAVE_EVERY_S, SpeedBook, forget_stale, setup_of
from mantle.core.errors import InvalidRequest
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import QueueBound, Reservation, Tenant
from mantle.engine.port import EngineSettings
from mantle.pool.port import CatalogueEntry
from mantle.testing.catalogue import ListCatalogue
from mantle.testing.sim_clock import SimClock
from mantle.testing.sim_loop import run_on_sim_time

M, N = ModelId("m"), ModelId("n")
SPEED = Speed(100.0, 10.0)  # 6,000 input or 600 output tokens a minute


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


def book_of(store, setup="s", meter=None):
    return SpeedBook(store.engine, meter or SpeedMeter(), lambda model_id: setup)


def buyer(name, inputs, outputs):
    return Tenant(TenantId(name), reservations=(Reservation(M, inputs, outputs),))


def test_speeds_outlive_the_server_and_are_no_change_of_tenants(store):
    count = store.change_count()
    book_of(store).save({M: SPEED, N: SPEED})
    book_of(store).save({M: Speed(200.0, 10.0)})
    assert store.speeds() == {M: Speed(200.0, 10.0), N: SPEED}
    assert store.change_count() == count
    meter = SpeedMeter()
    book_of(store, meter=meter).open()
    assert meter.speeds == store.speeds()


class HeardBook(SpeedBook):
    """Says after each try to save what it was given."""

    def __init__(self, store, meter):
        super().__init__(store.engine, meter, lambda model_id: "s")
        self.tries = asyncio.Queue()

    def save(self, speeds):
        try:
            super().save(speeds)
        finally:
            self.loop.call_soon_threadsafe(self.tries.put_nowait, dict(speeds))

    @contextlib.asynccontextmanager
    async def watching(self):
        self.loop = asyncio.get_running_loop()
        task = asyncio.create_task(self.watch())
        await asyncio.sleep(0)  # it looks at what is known now
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_watching_saves_what_is_new_and_nothing_else(store):
    meter, clock = SpeedMeter(), SimClock()
    book_of(store).save({M: SPEED})
    book = HeardBook(store, meter)
    book.open()

    async def live():
        async with book.watching():
            meter.speeds[N] = SPEED
            assert await book.tries.get() == {N: SPEED}
            assert clock.now_ms() == pytest.approx(SAVE_EVERY_S * 1e3, abs=10)
            assert store.speeds() == {M: SPEED, N: SPEED}
            meter.speeds[M] = Speed(200.0, 10.0)
            assert await book.tries.get() == {M: Speed(200.0, 10.0)}
        assert book.tries.empty()

    run_on_sim_time(live(), clock)
    assert store.speeds() == {M: Speed(200.0, 10.0), N: SPEED}


def test_watching_tries_again_when_the_database_failed(store, caplog):
    meter, clock = SpeedMeter(), SimClock()
    book = HeardBook(store, meter)

    async def live():
        async with book.watching():
            rename(store, "model_speeds", "elsewhere")
            meter.speeds[M] = SPEED
            assert await book.tries.get() == {M: SPEED}
            rename(store, "elsewhere", "model_speeds")
            assert store.speeds() == {}
            assert await book.tries.get() == {M: SPEED}

    run_on_sim_time(live(), clock)
    assert store.speeds() == {M: SPEED}
    assert [r.getMessage() for r in caplog.records if r.name == "mantle.cluster"] == [
        "measured speeds were not saved: OperationalError"
    ]


def rename(store, old, new):
    with store.engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {old} RENAME TO {new}"))


def test_another_setup_starts_afresh(store):
    book_of(store, "old").save({M: SPEED})
    forget_stale(store.engine, lambda model_id: "old")
    assert store.speeds() == {M: SPEED}
    forget_stale(store.engine, lambda model_id: "new")
    assert store.speeds() == {}


def test_setup_names_weights_and_engine_settings():
    def setup(digest="d", **engine):
        entry = CatalogueEntry(M, "scripted", "", digest, 1, 100, 0, "m")
        return setup_of(M, ListCatalogue(entry), Config(engine=EngineSettings(**engine)))

    assert setup() == setup()
    assert len({setup(), setup(digest="e"), setup(slots=2)}) == 3
    assert setup_of(N, ListCatalogue(), Config()) == ""


def test_reservation_beyond_what_was_measured_changes_nothing(store):
    book_of(store).save({M: SPEED})
    store.add(buyer("a", 3_000, 150))
    with pytest.raises(InvalidRequest, match=r"add up to 6000 input \+ 350 output .* 6000 input"):
        store.add(buyer("b", 3_000, 200))
    store.add(buyer("b", 1, 1))
    with pytest.raises(InvalidRequest):
        store.change("b", lambda tenant: buyer("b", 3_000, 200))
    assert store.find("b").tenant == buyer("b", 1, 1)
    store.change("a", lambda tenant: Tenant(tenant.id))
    store.change("b", lambda tenant: buyer("b", 3_000, 200))


def test_reservations_of_the_config_count_and_must_fit_at_start(store):
    book_of(store).save({M: SPEED})
    fixed = TenantConfig("fixed", reservations=[ReservationConfig("m", 3_000, 240)])
    live = LiveTenants(store, [fixed])
    with pytest.raises(InvalidRequest, match="3600 input"):
        store.add(buyer("a", 600, 60))
    store.add(buyer("a", 60, 6))
    store.add_key("a")
    live.snapshot = store.snapshot()
    live.check_start()
    more = TenantConfig("fixed", reservations=[ReservationConfig("m", 3_000, 300)])
    with pytest.raises(ConfigError, match=r"tenants\[\].reservations: .* add up to 3060 input"):
        LiveTenants(store, [more]).check_start()


def test_queue_bounds_come_back_equal(store):
    bounds = (QueueBound(Lane.FLEX, 5), QueueBound(Lane.STANDARD, None, 1_000))
    store.add(Tenant(TenantId("a"), queues=bounds))
    assert store.find("a").tenant.queues == bounds
    store.remove("a")
