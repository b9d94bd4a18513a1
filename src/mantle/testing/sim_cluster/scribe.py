"""What is written of a request, and what does its client see once that is durable?

The paper dispatcher's half of law 4. Invariant: a client gets tokens and ends in the order of the
records, after their commit; without a journal, at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from mantle.core.epoch import Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import RequestId
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.tokens import Usage
from mantle.journal.port import redacted
from mantle.journal.record import (
    Accepted,
    Asked,
    Choice,
    Dispatched,
    Finished,
    Parked,
    Pins,
    Record,
    Tokens,
)
from mantle.scheduler.effects import Dispatch
from mantle.testing.sim_cluster.paper_engine import Progress
from mantle.testing.sim_cluster.paper_journal import PaperJournal
from mantle.testing.sim_cluster.paper_request import Ask, Life
from mantle.testing.sim_cluster.paper_tokens import tokens_of
from mantle.testing.sim_cluster.watcher import Watcher

PINS = Pins(model="paper")


@dataclass(slots=True)
class Scribe:
    """One server's writing. `ending`: requests that have left, but whose end is not durable yet."""

    watcher: Watcher
    journal: PaperJournal | None = None
    ending: dict[RequestId, Life] = field(default_factory=dict)

    @property
    def refuses_asks(self) -> bool:
        """Nothing can be written just now."""
        return self.journal is not None and bool(self.journal.trouble)

    # --- the road of a request ------------------------------------------------------------------
    def accepted(self, lives: Sequence[Life]) -> None:
        records = [Accepted(life.request, len(life.request.prompt_tokens)) for life in lives]
        self._write([r if r.request.keeps_content else redacted(r) for r in records])

    def asked(self, ask: Ask, ask_id: str, lives: Sequence[Life]) -> None:
        """Right after its requests, as the gateway does."""
        choices = tuple(Choice(life.request.id) for life in lives)
        created_s = int(self.watcher.events.wall_s())
        asked = Asked(ask_id, ask.tenant_id, "", b"", created_s, choices, PINS, streams=ask.streams)
        self._write([asked])

    def dispatched(self, effect: Dispatch) -> None:
        self._write([Dispatched(effect.request_id, effect.epoch, effect.replica_id)])

    def parked(self, request_id: RequestId, epoch: Epoch) -> None:
        self._write([Parked(request_id, epoch)])

    def admits(self, life: Life, epoch: Epoch) -> bool:
        """Whether an attempt may still say that it is parked (law 6)."""
        if self.journal is None:
            return epoch == life.epoch
        return self.journal.admits(Parked(life.request.id, epoch))

    def step(self, reports: Sequence[tuple[Life, Progress]]) -> bool:
        """What one report of a replica brought. False: an older epoch's, so nothing came of it."""
        if self.journal is None and any(life.epoch != p.epoch for life, p in reports):
            return False
        records: list[Record] = []
        shown: list[tuple[Life, Tokens]] = []
        finished: list[Life] = []
        for life, progress in reports:
            if progress.count:
                record = _tokens(life, progress)
                records.append(record if life.request.keeps_content else redacted(record))
                shown.append((life, record))
            if progress.finished:
                used = progress.first_index + progress.count
                records.append(_end(life, Outcome.COMPLETED, used))
                finished.append(life)

        before = dict(self.ending) if finished else self.ending
        for life in finished:
            self.ending[life.request.id] = life
        try:
            self._write(records, partial(self._show, shown, finished))
        except JournalFault:
            self.ending = before
            return False
        return True

    def end(self, life: Life, outcome: Outcome) -> None:
        """It is over, but not by its engine. Who leaves pays for what it was shown."""
        is_cancelled = outcome is Outcome.CANCELLED
        used = life.shown_tokens if is_cancelled else life.written_tokens
        life.is_deaf = is_cancelled
        self.write_end(life, _end(life, outcome, used))

    def write_end(self, life: Life, end: Finished) -> None:
        """It is told once that is durable."""
        self.ending[end.request_id] = life
        self._write([end], lambda: self._tell(life, end.outcome))

    # --- inside ---------------------------------------------------------------------------------
    def _show(self, shown: Sequence[tuple[Life, Tokens]], finished: Sequence[Life]) -> None:
        for life, record in shown:
            if not life.is_deaf:
                self.watcher.shown(life, record.first_index, record.token_ids)
        for life in finished:
            self._tell(life, Outcome.COMPLETED)

    def _tell(self, life: Life, outcome: Outcome) -> None:
        del self.ending[life.request.id]
        if self.watcher.witness is not None:
            self.watcher.witness.told(life, outcome)
        self.watcher.ended(life, outcome)

    def _write(
        self, records: Sequence[Record], committed: Callable[[], None] | None = None
    ) -> None:
        """As the dispatcher: after a failure of the journal nothing is written, so none shown."""
        if self.journal is None:
            if committed is not None:
                committed()
        elif not self.journal.has_failed:
            self.journal.append(records, committed or _nothing)


def _tokens(life: Life, progress: Progress) -> Tokens:
    token_ids = tokens_of(life.request.id, progress.first_index, progress.count)
    return Tokens(life.request.id, progress.epoch, progress.first_index, token_ids, progress.count)


def _end(life: Life, outcome: Outcome, used: int) -> Finished:
    request = life.request
    finish = FinishReason.END if outcome is Outcome.COMPLETED else None
    return Finished(request.id, outcome, finish, Usage(len(request.prompt_tokens), 0, used))


def _nothing() -> None:
    return None
