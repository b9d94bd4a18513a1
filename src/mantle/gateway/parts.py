"""What does the gateway need from the rest of Mantle? Its parts, its settings, its observations.

Invariant: the gateway reaches other stages through these ports only; wiring builds `GatewayParts`.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from mantle.admission.port import AdmissionPort, TenantAdmin
from mantle.core import limits
from mantle.core.clock import Clock
from mantle.core.outcome import Outcome
from mantle.gateway.fair_executor import FairExecutor
from mantle.gateway.held import HeldAsks
from mantle.journal.port import Journal
from mantle.pool.port import CatalogueEntry, CataloguePort, PoolPort
from mantle.scheduler.port import OverviewPort
from mantle.text.port import ModelText

Phase = Literal["tokenise", "prefill", "decode", "detokenise"]


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the gateway answers; part of the config (`gateway:`).

    `reattach_grace_s`: how long a request with an idempotency key, or one of an earlier server,
    runs on while nobody reads it. `body_idle_s`: longest wait for the next part of a body.
    `stream_hold_s`: how long a stream's status line waits for a first token or an early error.
    `ping_s`: longest silence in a stream; `queue_ping_s`: the same while its request waits in a
    queue, when it says where it stands. `strict_api_version`: refuse what Anthropic's newer
    API version refuses. `expose_phases_header`: send queue wait and phases as reply headers.
    """

    body_bytes_max: int = limits.BODY_BYTES_MAX
    ping_s: float = limits.SSE_PING_S
    queue_ping_s: float = limits.QUEUE_PING_S
    stream_hold_s: float = limits.STREAM_HOLD_S
    body_idle_s: float = limits.BODY_IDLE_S_MAX
    reattach_grace_s: float = 30.0
    strict_api_version: bool = False
    expose_phases_header: bool = False


class TextProvider(Protocol):
    """Tokeniser and template of a model, loaded on first use. Raises `LoadFailed`."""

    async def get(self, entry: CatalogueEntry) -> ModelText: ...


class Health(Protocol):
    """Is the platform alive, and can it serve now? `reason` is safe to show to anybody."""

    def is_alive(self) -> bool: ...

    def is_ready(self) -> bool: ...

    def reason(self) -> str: ...


class GatewayMetrics(Protocol):
    """What the gateway observes. All arguments are low-cardinality, milliseconds or counts.

    `model` is a catalogue id or "" (unknown names are never labels), `lane` is the served lane
    or "" (never queued). `tenant` may only become a label if the operator opted in.
    """

    def request_finished(
        self,
        *,
        route: str,
        model: str,
        tenant: str,
        lane: str,
        outcome: Outcome,
        status: int,
        duration_ms: float,
    ) -> None: ...

    def tokens_used(
        self,
        *,
        model: str,
        tenant: str,
        lane: str,
        input_tokens: int,
        cached_tokens: int,
        output_tokens: int,
    ) -> None: ...

    def queue_wait(self, wait_ms: float, *, model: str, lane: str) -> None: ...

    def ttft(self, ttft_ms: float, *, model: str, lane: str) -> None:
        """Time from the request's arrival to its first output token."""
        ...

    def token_gap(self, gap_ms: float, *, model: str, lane: str) -> None:
        """Time between two arrivals of output tokens of one branch."""
        ...

    def phase(self, phase: Phase, phase_ms: float, *, model: str, lane: str) -> None: ...

    def render(self) -> tuple[bytes, str]:
        """All metrics and their content type, for `/metrics`."""
        ...


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """Everything the gateway is built from. `executor` runs tokenising off the event loop;
    without `admin` there is no admin API.
    """

    admission: AdmissionPort
    catalogue: CataloguePort
    pool: PoolPort
    texts: TextProvider
    executor: FairExecutor
    clock: Clock
    health: Health
    metrics: GatewayMetrics
    journal: Journal
    asks: HeldAsks
    overview: OverviewPort
    settings: GatewaySettings = field(default_factory=GatewaySettings)
    admin: TenantAdmin | None = None
