"""What is said of a request once it is over? Metrics while it runs, one log line at its end.

Invariant: each request is finished once, with an `Outcome`; no content and no unknown model name
ever becomes a label or a log field.
"""

import logging
import traceback

from mantle.core.outcome import Outcome
from mantle.core.tokens import Usage
from mantle.gateway.parts import GatewayMetrics
from mantle.scheduler.port import Phases

logger = logging.getLogger("mantle.gateway")

_CLIENT_ID_CHARS_MAX = 128


class Account:
    """One request's record; also who hears of its tokens' arrival."""

    def __init__(self, metrics: GatewayMetrics, *, request_id: str, started_ms: float) -> None:
        self.route = ""
        self.model = ""
        self.tenant = ""
        self.lane = ""
        self.outcome = Outcome.CANCELLED
        self.client_request_id = ""
        self._metrics = metrics
        self._request_id = request_id
        self._started_ms = started_ms

    def first_token(self, at_ms: float) -> None:
        self._metrics.ttft(at_ms - self._started_ms, model=self.model, lane=self.lane)

    def token_gap(self, gap_ms: float) -> None:
        self._metrics.token_gap(gap_ms, model=self.model, lane=self.lane)

    def tokenised(self, phase_ms: float) -> None:
        self._metrics.phase("tokenise", phase_ms, model=self.model, lane=self.lane)

    def detokenised(self, phase_ms: float) -> None:
        self._metrics.phase("detokenise", phase_ms, model=self.model, lane=self.lane)

    def generated(self, phases: Phases) -> None:
        """Where one branch's time went."""
        model, lane = self.model, self.lane
        self._metrics.queue_wait(phases.queue_ms, model=model, lane=lane)
        self._metrics.phase("prefill", phases.prefill_ms, model=model, lane=lane)
        self._metrics.phase("decode", phases.decode_ms, model=model, lane=lane)

    def used(self, usage: Usage) -> None:
        self._metrics.tokens_used(
            model=self.model,
            tenant=self.tenant,
            lane=self.lane,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
        )

    def unhandled(self, error: Exception) -> None:
        """Our bug: where it happened, without the exception's text (it may quote content)."""
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error(
            "unhandled %s\n%s", type(error).__name__, frames, extra={"id": self._request_id}
        )

    def finish(self, status: int, now_ms: float) -> None:
        """Close the record: metrics and the log line."""
        duration_ms = now_ms - self._started_ms
        self._metrics.request_finished(
            route=self.route,
            model=self.model,
            tenant=self.tenant,
            lane=self.lane,
            outcome=self.outcome,
            status=status,
            duration_ms=duration_ms,
        )
        if logger.isEnabledFor(logging.INFO):
            logger.info("request finished", extra=self._line(status, duration_ms))

    def _line(self, status: int, duration_ms: float) -> dict[str, object]:
        line: dict[str, object] = {
            "id": self._request_id,
            "route": self.route,
            "tenant": self.tenant,
            "model": self.model,
            "status": status,
            "outcome": self.outcome.value,
            "ms": round(duration_ms, 2),
        }
        client_id = self.client_request_id[:_CLIENT_ID_CHARS_MAX]
        if client_id and client_id.isascii() and client_id.isprintable():
            line["client_id"] = client_id
        return line
