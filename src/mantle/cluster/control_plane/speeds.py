"""How fast was each model measured to be? Kept beside the tenants, so that commands can ask too.

Invariant: a speed is kept with the setup it was measured on (weights, engine settings, cores), and
only the best of one setup is kept. Keeping one is no change of tenants: `change_count` stays.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import sqlalchemy as sa

from mantle.cluster.capacity import Speed, SpeedMeter
from mantle.cluster.config_model import Config
from mantle.cluster.control_plane.database import writing
from mantle.cluster.control_plane.tables import MODEL_SPEEDS
from mantle.core.clock import Clock, SystemClock
from mantle.core.ids import ModelId
from mantle.pool.port import CataloguePort

log = logging.getLogger("mantle.cluster")

SAVE_EVERY_S: Final = 10.0


def read_speeds(connection: sa.Connection) -> dict[ModelId, Speed]:
    rows = connection.execute(sa.select(MODEL_SPEEDS))
    return {
        ModelId(row.model): Speed(row.prefill_tokens_per_s, row.decode_tokens_per_s) for row in rows
    }


def setup_of(model_id: ModelId, catalogue: CataloguePort, config: Config) -> str:
    """Changes with whatever makes a model faster or slower on this machine, as far as we know."""
    entry = catalogue.find(model_id)
    if entry is None:
        return ""
    settings = msgspec.json.encode(config.engine_for(entry.id))
    parts = (entry.digest.encode(), settings, str(os.cpu_count()).encode())
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


def forget_stale(engine: sa.Engine, setup_of: Callable[[ModelId], str]) -> None:
    """Forget what was measured on another setup."""
    with writing(engine).begin() as connection:
        for row in connection.execute(sa.select(MODEL_SPEEDS)).all():
            if setup_of(ModelId(row.model)) != row.setup:
                where = MODEL_SPEEDS.c.model == row.model
                connection.execute(sa.delete(MODEL_SPEEDS).where(where))


class SpeedBook:
    """Writes down what `meter` learns. `setup_of`: what a model is measured on now, if known."""

    def __init__(
        self,
        engine: sa.Engine,
        meter: SpeedMeter,
        setup_of: Callable[[ModelId], str],
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._setup_of = setup_of
        self._clock = clock or SystemClock()

    def open(self) -> None:
        """Go on from what is written down."""
        with self._engine.connect() as connection:
            self._meter.speeds.update(read_speeds(connection))

    def save(self, speeds: Mapping[ModelId, Speed]) -> None:
        with writing(self._engine).begin() as connection:
            for model_id, speed in speeds.items():
                where = MODEL_SPEEDS.c.model == model_id
                connection.execute(sa.delete(MODEL_SPEEDS).where(where))
                row = {
                    "model": model_id,
                    "setup": self._setup_of(model_id),
                    "prefill_tokens_per_s": speed.prefill_tokens_per_s,
                    "decode_tokens_per_s": speed.decode_tokens_per_s,
                    "measured_s": int(self._clock.wall_s()),
                }
                connection.execute(sa.insert(MODEL_SPEEDS).values(row))

    async def watch(self) -> None:
        """Write down what is new, for ever."""
        saved = dict(self._meter.speeds)
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            new = {m: s for m, s in self._meter.speeds.items() if saved.get(m) != s}
            if not new:
                continue
            try:
                await asyncio.to_thread(self.save, new)
            except sa.exc.SQLAlchemyError as error:
                log.error("measured speeds were not saved: %s", type(error).__name__)
            else:
                saved.update(new)
