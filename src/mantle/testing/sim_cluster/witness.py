"""Does the journal keep its word? It compares what is durable, what was shown, and what is true.

Invariants it checks: nothing is shown that is not durable; no token is lost, doubled or changed,
in the journal or before the client; an epoch is used once; a request that the client was told of
ends once, and its usage counts each of its tokens once, however many servers worked on it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mantle.core.epoch import FIRST_EPOCH
from mantle.core.ids import RequestId
from mantle.core.outcome import Outcome
from mantle.journal.port import Damage, RequestHistory
from mantle.journal.record import Accepted, Asked, Dispatched, Finished, Record, Tokens
from mantle.testing.sim_cluster.invariant import broken, require
from mantle.testing.sim_cluster.paper_request import Life
from mantle.testing.sim_cluster.paper_store import PaperStore
from mantle.testing.sim_cluster.paper_tokens import tokens_of


@dataclass(slots=True)
class Witness:
    """Knows every request that ever arrived, and every record that ever became durable."""

    lives: dict[RequestId, Life] = field(default_factory=dict)

    def arrived(self, life: Life) -> None:
        self.lives[life.request.id] = life

    def open_lives(self) -> Iterator[Life]:
        """Whose client has not seen an end."""
        return (life for life in self.lives.values() if life.outcome is None)

    # --- what became durable --------------------------------------------------------------------
    def committed(self, records: Sequence[Record]) -> None:
        """These are durable from now on."""
        for record in records:
            if isinstance(record, Asked):
                for choice in record.choices:
                    self.lives[choice.request_id].is_promised = True
                continue
            if isinstance(record, Accepted):
                continue
            life = self.lives[record.request_id]
            if life.final is not None:
                broken(f"{record.request_id}: a record came after its end")
            if life.is_set_aside:
                broken(f"{record.request_id} was set aside, but is written of")
            if isinstance(record, Tokens):
                self._tokens(life, record)
            elif isinstance(record, Dispatched):
                is_newer = record.epoch > life.durable_epoch
                require(is_newer, f"{record.request_id}: epoch {record.epoch} was used twice")
                life.durable_epoch = record.epoch
            elif isinstance(record, Finished):
                self._finished(life, record)

    def _tokens(self, life: Life, record: Tokens) -> None:
        request_id, first_index = record.request_id, record.first_index
        if first_index != life.durable_tokens:
            broken(f"{request_id}: token {first_index} was written after {life.durable_tokens}")
        if not life.request.keeps_content:
            if record.token_ids:
                broken(f"{request_id} keeps nothing, but was written down")
        elif record.token_ids != tokens_of(request_id, first_index, record.count):
            broken(f"{request_id}: a token was changed in the journal")
        life.durable_tokens += record.count

    def _finished(self, life: Life, record: Finished) -> None:
        life.final = record
        if not life.is_promised:
            return  # nobody was told of it, so nobody pays
        used, durable = record.usage.output_tokens, life.durable_tokens
        exact = (
            life.shown_tokens <= used if record.outcome is Outcome.CANCELLED else used == durable
        )
        require(
            exact and used <= durable,
            f"{record.request_id}: usage of {used} tokens, {durable} durable, "
            f"{life.shown_tokens} shown",
        )

    # --- what the client sees -------------------------------------------------------------------
    def shown(self, life: Life, first_index: int, token_ids: list[int]) -> None:
        """The client reads on from where it is; the life has not counted these yet."""
        request_id, count = life.request.id, len(token_ids)
        if first_index != life.shown_tokens:
            broken(f"{request_id}: token {first_index} was shown after {life.shown_tokens}")
        if first_index + count > life.durable_tokens:
            broken(f"{request_id}: tokens were shown before they were durable")
        if token_ids != tokens_of(request_id, first_index, count):
            broken(f"{request_id}: the client saw a changed token")

    def told(self, life: Life, outcome: Outcome) -> None:
        """The client hears that it is over."""
        if life.final is None or life.final.outcome is not outcome:
            broken(f"{life.request.id}: its client was told of an end that is not durable")

    # --- what a new server found ----------------------------------------------------------------
    def resumed(self, life: Life, history: RequestHistory) -> None:
        """A request of an earlier server goes on after what the journal has of it."""
        request_id, found = life.request.id, history.output_count
        require(life.final is None, f"{request_id} is over, but goes on")
        require(
            found == len(history.output) == life.durable_tokens,
            f"{request_id}: {found} tokens were found, {life.durable_tokens} were durable",
        )
        require(
            history.epoch == max(life.durable_epoch, FIRST_EPOCH),
            f"{request_id}: epoch {history.epoch} was found, {life.durable_epoch} was durable",
        )

    def set_aside(self, damage: Damage, store: PaperStore) -> list[Life]:
        """An ask is quarantined; its requests that had no end yet."""
        require(damage.id in store.corrupted, f"{damage.id} is sound, but was set aside")
        mine = [life for life in self.open_lives() if life.ask_id == damage.id]
        for life in mine:
            life.is_set_aside = True
        return mine

    def forgotten(self, life: Life) -> None:
        """A new server knows nothing of it: its client must not have been told of it."""
        require(not life.is_promised, f"{life.request.id} is lost, though its ask was durable")

    # --- when all is over -----------------------------------------------------------------------
    def check_end(self, store: PaperStore) -> None:
        """Every request has its end; those that servers died with are read back from the bytes."""
        for request_id, life in self.lives.items():
            if not life.is_promised or life.ask_id in store.corrupted:
                continue
            if not life.outlived_a_server:
                require(life.final is not None, f"{request_id} has no end in the journal")
                continue
            history = store.history(request_id)
            end, count = history.finished, history.output_count
            require(end is not None, f"{request_id} has no end in the journal")
            assert end is not None
            require(end.outcome is life.outcome, f"{request_id}: the client saw {life.outcome}")
            is_whole = end.outcome is not Outcome.COMPLETED or count == life.output_tokens
            require(is_whole, f"{request_id} completed with {count} of {life.output_tokens} tokens")
            truth = tokens_of(request_id, 0, count) if life.request.keeps_content else []
            require(history.output == truth, f"{request_id}: its durable tokens are not its own")
