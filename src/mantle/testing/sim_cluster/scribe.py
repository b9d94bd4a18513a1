"""What is written of a request, and what does its client see once that is durable?

The paper dispatcher's half of law 4. Invariant: a client gets tokens and ends in the order of the
records, after their commit; without a journal, at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mantle.core.epoch import Epoch
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
        """Whether an attempt's word still counts (law 6): the real fence decides."""
        if self.journal is None:
            return epoch == life.epoch
        return self.journal.admits(Parked(life.request.id, epoch))

    def step(self, reports: Sequence[tuple[Life, Progress]]) -> None:
        """What one report of a replica brought; finished lives are over for this server."""
        records: list[Record] = []
        shows: list[Callable[[], None]] = []
        for life, progress in reports:
            if progress.count:
                record = _tokens(life, progress)
                records.append(record if life.request.keeps_content else redacted(record))
                shows.append(self._showing(life, record))
            if progress.finished:
                records.append(self._end(life, Outcome.COMPLETED, life.written_tokens))
                shows.append(self._telling(life, Outcome.COMPLETED))
        self._write(records, lambda: _do_all(shows))

    def end(self, life: Life, outcome: Outcome) -> None:
        """It is over, but not by its engine. Who leaves pays for what it was shown."""
        is_cancelled = outcome is Outcome.CANCELLED
        used = life.shown_tokens if is_cancelled else life.written_tokens
        life.is_deaf = is_cancelled
        self._write([self._end(life, outcome, used)], self._telling(life, outcome))

    def end_found(self, life: Life, end: Finished) -> None:
        """It was found in the journal and does not go on."""
        self.ending[end.request_id] = life
        self._write([end], self._telling(life, end.outcome))

    # --- inside ---------------------------------------------------------------------------------
    def _end(self, life: Life, outcome: Outcome, used: int) -> Finished:
        request = life.request
        self.ending[request.id] = life
        finish = FinishReason.END if outcome is Outcome.COMPLETED else None
        return Finished(request.id, outcome, finish, Usage(len(request.prompt_tokens), 0, used))

    def _showing(self, life: Life, record: Tokens) -> Callable[[], None]:
        def show() -> None:
            if not life.is_deaf:
                self.watcher.shown(life, record.first_index, record.token_ids)

        return show

    def _telling(self, life: Life, outcome: Outcome) -> Callable[[], None]:
        def tell() -> None:
            del self.ending[life.request.id]
            self.watcher.ended(life, outcome)

        return tell

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


def _do_all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _nothing() -> None:
    return None
