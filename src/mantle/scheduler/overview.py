"""What does the scheduler look like from outside? Facts for metrics and reports.

Invariant: nothing is decided here. It is read on the event loop that owns the scheduler, so each
answer is of one moment; what is handed out is values, never the scheduler's own objects.
"""

from mantle.core.clock import Clock
from mantle.core.ids import ModelId
from mantle.core.lane import Lane
from mantle.scheduler.scheduler import Scheduler


class Overview:
    """Answers for operators."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock

    # --- for metrics ----------------------------------------------------------------------------
    def certificates(self) -> dict[tuple[Lane, ModelId], float]:
        """The fairness certificate of each lane on each model, as it stands (design §5: <= 1)."""
        now_ms = self._clock.now_ms()
        certificates = self._scheduler.accounts.certificates()
        return {key: certificate.present(now_ms) for key, certificate in certificates.items()}

    def certificates_highest(self) -> dict[tuple[Lane, ModelId], float]:
        """The same, the worst since the start: no window is missed between two scrapes."""
        now_ms = self._clock.now_ms()
        return {
            key: max(certificate.present(now_ms), certificate.highest)
            for key, certificate in self._scheduler.accounts.certificates().items()
        }
