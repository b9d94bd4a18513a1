"""What can be seen from outside? Prometheus metrics of the road that a request takes.

Invariant: labels are few and closed (route, model, lane, outcome, phase); a tenant becomes a
label only when the operator opted in; content never comes here.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from mantle.core.ids import ModelId
from mantle.core.lane import Lane
from mantle.core.outcome import Outcome

SECONDS_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600,
)  # fmt: skip
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)

Values = Callable[[], Mapping[tuple[Lane, ModelId], float]]
"""What a gauge reads at each scrape: a value a lane and model."""


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, *, tenant_label: bool = False) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # series nobody asked for
        self._tenant_label = tenant_label
        self._registry = registry = CollectorRegistry()
        tenant = ("tenant",) if tenant_label else ()
        self._requests = Counter(
            "mantle_requests", "Requests that ended, by how.",
            ("route", "model", "lane", "outcome", "status", *tenant), registry=registry,
        )  # fmt: skip
        self._duration = Histogram(
            "mantle_request_duration_seconds", "From arrival to the last byte.",
            ("route", "model", "lane"), buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "mantle_tokens", "Tokens; kind is input, cached (part of input) or output.",
            ("model", "lane", "kind", *tenant), registry=registry,
        )  # fmt: skip
        lane_labels = ("model", "lane")
        self._queue_wait = Histogram(
            "mantle_queue_wait_seconds", "From acceptance to dispatch.",
            lane_labels, buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._wait_error = Histogram(
            "mantle_wait_estimate_error_seconds", "How far a wait's first estimate was off.",
            lane_labels, buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._wait_ratio = Histogram(
            "mantle_wait_estimate_ratio", "First estimate / real wait, of waits over a second.",
            lane_labels, buckets=RATIO_BUCKETS, registry=registry,
        )  # fmt: skip
        self._ttft = Histogram(
            "mantle_ttft_seconds", "From arrival to the first output token.",
            lane_labels, buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._gap = Histogram(
            "mantle_inter_token_gap_seconds", "Between two arrivals of tokens in one stream.",
            lane_labels, buckets=GAP_BUCKETS, registry=registry,
        )  # fmt: skip
        self._phase = Histogram(
            "mantle_phase_seconds", "Time in each phase: tokenise, prefill, decode, detokenise.",
            ("phase", *lane_labels), buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._running = Gauge(
            "mantle_running_requests", "Requests in a slot now.", lane_labels, registry=registry
        )
        self._queued = Gauge(
            "mantle_queued_requests", "Requests that wait now.", lane_labels, registry=registry
        )
        self._certificate = Gauge(
            "mantle_fairness_certificate", "Worst |dW| / 2U of two backlogged tenants, just now.",
            lane_labels, registry=registry,
        )  # fmt: skip
        self._certificate_highest = Gauge(
            "mantle_fairness_certificate_highest", "The same, the worst since the server started.",
            lane_labels, registry=registry,
        )  # fmt: skip
        self._make_engine_metrics(registry)
        self._known: dict[tuple[int, tuple[str, ...]], Histogram] = {}
        self._watched: list[tuple[Gauge, Values]] = []
        self._restarts: Callable[[], int] | None = None

    def _make_engine_metrics(self, registry: CollectorRegistry) -> None:
        self._engine_tokens = Counter(
            "mantle_engine_tokens", "Tokens the engine computed; phase is prefill or decode.",
            ("model", "phase"), registry=registry,
        )  # fmt: skip
        self._engine_seconds = Counter(
            "mantle_engine_step_seconds", "Time spent in engine steps.",
            ("model",), registry=registry,
        )  # fmt: skip
        self._engine_steps = Counter(
            "mantle_engine_steps", "Engine steps.", ("model",), registry=registry
        )
        self._worker_restarts = Gauge(
            "mantle_worker_restarts", "Workers started again after a loss.", registry=registry
        )

    def watch(
        self,
        *,
        queued: Values,
        running: Values,
        certificate: Values,
        certificate_highest: Values,
        restarts: Callable[[], int],
    ) -> None:
        """Where the gauges are read from at each scrape."""
        self._watched = [
            (self._queued, queued),
            (self._running, running),
            (self._certificate, certificate),
            (self._certificate_highest, certificate_highest),
        ]
        self._restarts = restarts

    # --- what the gateway observes --------------------------------------------------------------
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
    ) -> None:
        labels = [route, model, lane, outcome.value, str(status)]
        self._requests.labels(*labels, *self._tenant(tenant)).inc()
        self._series(self._duration, route, model, lane).observe(duration_ms / 1e3)

    def tokens_used(
        self,
        *,
        model: str,
        tenant: str,
        lane: str,
        input_tokens: int,
        cached_tokens: int,
        output_tokens: int,
    ) -> None:
        counts = {"input": input_tokens, "cached": cached_tokens, "output": output_tokens}
        for kind, count in counts.items():
            if count:
                self._tokens.labels(model, lane, kind, *self._tenant(tenant)).inc(count)

    def ttft(self, ttft_ms: float, *, model: str, lane: str) -> None:
        self._series(self._ttft, model, lane).observe(ttft_ms / 1e3)

    def token_gap(self, gap_ms: float, *, model: str, lane: str) -> None:
        self._series(self._gap, model, lane).observe(gap_ms / 1e3)

    def phase(
        self,
        phase: Literal["tokenise", "prefill", "decode", "detokenise"],
        phase_ms: float,
        *,
        model: str,
        lane: str,
    ) -> None:
        self._series(self._phase, phase, model, lane).observe(phase_ms / 1e3)

    def queue_wait(self, wait_ms: float, *, model: str, lane: str) -> None:
        self._series(self._queue_wait, model, lane).observe(wait_ms / 1e3)

    def render(self) -> tuple[bytes, str]:
        """The exposition and its content type."""
        self._read_gauges()
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    # --- what the dispatcher observes -----------------------------------------------------------
    def engine_step(
        self, model_id: ModelId, step_ms: float, prefill_tokens: int, decode_tokens: int
    ) -> None:
        self._engine_steps.labels(model_id).inc()
        self._engine_seconds.labels(model_id).inc(step_ms / 1e3)
        if prefill_tokens:
            self._engine_tokens.labels(model_id, "prefill").inc(prefill_tokens)
        if decode_tokens:
            self._engine_tokens.labels(model_id, "decode").inc(decode_tokens)

    def wait_over(
        self, lane: Lane, model_id: ModelId, estimated_ms: float, waited_ms: float
    ) -> None:
        """A request starts that was told, when it came, how long it would wait."""
        error_ms = abs(estimated_ms - waited_ms)
        self._series(self._wait_error, model_id, lane).observe(error_ms / 1e3)
        if waited_ms > 1_000.0:
            self._series(self._wait_ratio, model_id, lane).observe(estimated_ms / waited_ms)

    # --- inside ---------------------------------------------------------------------------------
    def _series(self, histogram: Histogram, *labels: str) -> Histogram:
        """The series of these labels; looking it up in the library takes longer than observing."""
        key = (id(histogram), labels)
        series = self._known.get(key)
        if series is None:
            series = self._known[key] = histogram.labels(*labels)
        return series

    def _tenant(self, tenant: str) -> tuple[str, ...]:
        return (tenant,) if self._tenant_label else ()

    def _read_gauges(self) -> None:
        if self._restarts is not None:
            self._worker_restarts.set(self._restarts())
        for gauge, read in self._watched:
            gauge.clear()
            for (lane, model_id), value in read().items():
                gauge.labels(model_id, lane).set(value)
