"""What can an operator set? One frozen struct a stage, composed in `Config`; all have defaults."""

from typing import Literal

import msgspec

from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import ANY_MODEL, QueueBound, Quota, Reservation, Tenant
from mantle.engine.port import EngineSettings
from mantle.gateway.parts import GatewaySettings
from mantle.pool.placement import PlacementRules
from mantle.scheduler.lane_order import DEFAULT_FLOORS
from mantle.scheduler.queues import QueueBounds
from mantle.scheduler.rules import default_bounds

REQUESTABLE_LANES = (Lane.PRIORITY, Lane.STANDARD, Lane.FLEX)


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the server listens; `shutdown_s_max`: how long live requests may finish at the end."""

    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_s_max: float = 30.0


class PoolConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`memory_mib` 0: most of what is free at start. `preload`: models loaded at start (default:
    the only one, when the catalogue has one).
    """

    memory_mib: int = 0
    preload: list[str] | None = None
    placement: PlacementRules = PlacementRules()


class LaneConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's queue in one lane, and the lane's floor: a share of all token cost served.

    What is left out keeps the lane's built-in value.
    """

    requests_max: int | None = None
    tokens_max: int | None = None
    wait_s_max: float | None = None
    floor: float | None = None

    def bounds(self, built_in: QueueBounds) -> QueueBounds:
        return QueueBounds(
            built_in.requests_max if self.requests_max is None else self.requests_max,
            built_in.tokens_max if self.tokens_max is None else self.tokens_max,
            built_in.wait_s_max if self.wait_s_max is None else self.wait_s_max,
        )


class CostConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of one token, the currency of fairness."""

    input_token: float = 1.0
    output_token: float = 2.0


class SchedulerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lanes, floors and costs."""

    lanes: dict[Lane, LaneConfig] = {}
    cost: CostConfig = CostConfig()

    def bounds(self) -> dict[Lane, QueueBounds]:
        """Queue bounds of every lane, the built-in ones where the config is silent."""
        silent = LaneConfig()
        return {
            lane: self.lanes.get(lane, silent).bounds(built_in)
            for lane, built_in in default_bounds().items()
        }

    def floors(self) -> dict[Lane, float]:
        """Floors of the lanes that have one."""
        floors = dict(DEFAULT_FLOORS)
        for lane, config in self.lanes.items():
            if config.floor is not None:
                floors[lane] = config.floor
        return {lane: share for lane, share in floors.items() if share > 0}


class QuotaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Most that a tenant may use of a model (`*`: of each model without its own quota)."""

    model: str = ANY_MODEL
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    concurrent_max: int | None = None


class ReservationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Capacity of a model that a tenant bought."""

    model: str
    input_tokens_per_min: int
    output_tokens_per_min: int


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Most that a tenant may have waiting in one lane; what is left out is as for every tenant."""

    lane: Lane
    requests_max: int | None = None
    tokens_max: int | None = None


class TenantConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant with the SHA-256 hashes of its API keys (`mantle tenants hash` makes one)."""

    id: str
    weight: float = 1.0
    lanes: list[Lane] = msgspec.field(default_factory=lambda: list(REQUESTABLE_LANES))
    models: list[str] | None = None
    api_key_sha256: list[str] = []
    quotas: list[QuotaConfig] = []
    reservations: list[ReservationConfig] = []
    queues: list[QueueConfig] = []

    def as_tenant(self) -> Tenant:
        return Tenant(
            id=TenantId(self.id),
            weight=self.weight,
            models=None if self.models is None else frozenset(map(ModelId, self.models)),
            lanes=frozenset(self.lanes),
            quotas=tuple(
                Quota(
                    ModelId(q.model),
                    q.input_tokens_per_min,
                    q.output_tokens_per_min,
                    q.concurrent_max,
                )
                for q in self.quotas
            ),
            reservations=tuple(
                Reservation(ModelId(r.model), r.input_tokens_per_min, r.output_tokens_per_min)
                for r in self.reservations
            ),
            queues=tuple(QueueBound(q.lane, q.requests_max, q.tokens_max) for q in self.queues),
        )


class JournalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is written down of requests. `store`: `sqlite` (a file in the data folder), `postgres`
    (schema `schema` of the database at `url`; without a `url`, the environment's
    MANTLE_JOURNAL_URL) or `none` (nothing survives the server).

    `policy`: `strict` shows what is durable, `relaxed` may lose the last 50 ms. `keep_s`: how long
    a finished request can be asked for again. `retention` `none`: no text and no tokens are ever
    written, so a request does not survive the server.
    """

    store: Literal["sqlite", "postgres", "none"] = "sqlite"
    url: str | None = None
    schema: str = "mantle"
    policy: Literal["strict", "relaxed"] = "strict"
    keep_s: float = 3_600.0
    retention: Literal["default", "none"] = "default"


class ObserveConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tenant_label`: metrics name tenants (many tenants make many time series)."""

    tenant_label: bool = False
    log_level: str = "info"
    log_json: bool = False


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything an operator can set. `engines` overrides `engine` for single models."""

    data_dir: str = "mantle-data"
    server: ServerConfig = ServerConfig()
    gateway: GatewaySettings = GatewaySettings()
    engine: EngineSettings = EngineSettings()
    engines: dict[str, EngineSettings] = {}
    pool: PoolConfig = PoolConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    journal: JournalConfig = JournalConfig()
    tenants: list[TenantConfig] = []
    observe: ObserveConfig = ObserveConfig()

    def engine_for(self, model_id: str) -> EngineSettings:
        return self.engines.get(model_id, self.engine)
