"""What is on the paper disk? Records, kept by whose they are.

Invariant: `commit` is all or nothing, and what it wrote survives every server; what `recover`
tells went through production's bytes (made only when they are read) and production's fold.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import RequestId
from mantle.journal.coalesce import coalesce
from mantle.journal.codec import decode, encode, owner_of
from mantle.journal.history import AskHistory, RequestHistory, request_history
from mantle.journal.port import Damage, Recovered
from mantle.journal.record import Accepted, Asked, Finished, Record


@dataclass(slots=True)
class PaperStore:
    """Outlives the servers. `on_commit` hears of every record that is durable from now on."""

    on_commit: Callable[[Sequence[Record]], None]
    corrupted: set[str] = field(default_factory=set)  # asks with a record that was damaged
    _written: dict[str, list[Record]] = field(default_factory=dict)
    _damage: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # record, byte, bit
    _open_asks: dict[str, Asked] = field(default_factory=dict)
    _ask_of: dict[RequestId, str | None] = field(default_factory=dict)
    _unfinished: set[RequestId] = field(default_factory=set)

    def commit(self, records: Sequence[Record]) -> None:
        """All of these are durable."""
        joined = coalesce(records)
        for record in joined:
            self._written.setdefault(owner_of(record), []).append(record)
            self._index(record)
        self.on_commit(joined)

    def recover(self) -> Recovered:
        """All that is not over, in the order of production's store."""
        asks: list[AskHistory] = []
        damaged: list[Damage] = []
        for asked in sorted(self._open_asks.values(), key=lambda a: (a.created_s, a.id)):
            try:
                asks.append(self._ask(asked.id))
            except JournalFault as fault:
                damaged.append(Damage(asked.id, fault.message))
        orphans = tuple(
            (request_id, self._epoch_of(request_id))
            for request_id, ask_id in self._ask_of.items()
            if ask_id is None and request_id in self._unfinished
        )
        return Recovered(tuple(asks), orphans, tuple(damaged))

    def history(self, request_id: RequestId) -> RequestHistory:
        """One request, folded. Raises `JournalFault` when its records cannot be believed."""
        return request_history(self._records(request_id))

    def corrupt_one(self, rng: random.Random) -> None:
        """Damage one bit of one record of an ask that is not over, if there is one."""
        sound = [asked for ask_id, asked in self._open_asks.items() if ask_id not in self.corrupted]
        if not sound:
            return
        asked = rng.choice(sound)
        owner = rng.choice([asked.id, *(choice.request_id for choice in asked.choices)])
        index = rng.randrange(len(self._written[owner]))
        size_bytes = len(encode(self._written[owner][index]))
        self._damage[owner] = (index, rng.randrange(size_bytes), rng.randrange(8))
        self.corrupted.add(asked.id)

    def _index(self, record: Record) -> None:
        if isinstance(record, Accepted):
            self._ask_of[record.request.id] = None
            self._unfinished.add(record.request.id)
        elif isinstance(record, Asked):
            self._open_asks[record.id] = record
            for choice in record.choices:
                self._ask_of[choice.request_id] = record.id
            self._close_if_over(record.id)
        elif isinstance(record, Finished):
            self._unfinished.discard(record.request_id)
            ask_id = self._ask_of.get(record.request_id)
            if ask_id is not None:
                self._close_if_over(ask_id)

    def _close_if_over(self, ask_id: str) -> None:
        asked = self._open_asks.get(ask_id)
        if asked is not None and self._unfinished.isdisjoint(c.request_id for c in asked.choices):
            del self._open_asks[ask_id]

    def _ask(self, ask_id: str) -> AskHistory:
        records = self._records(ask_id)
        if len(records) != 1 or not isinstance(records[0], Asked):
            raise JournalFault("an ask was not written exactly once")
        asked = records[0]
        return AskHistory(asked, tuple(self.history(c.request_id) for c in asked.choices))

    def _epoch_of(self, request_id: RequestId) -> Epoch:
        try:
            return self.history(request_id).epoch
        except JournalFault:
            return FIRST_EPOCH

    def _records(self, owner: str) -> list[Record]:
        blobs = [encode(record) for record in self._written.get(owner, ())]
        if owner in self._damage:
            record_index, byte_index, bit = self._damage[owner]
            damaged = bytearray(blobs[record_index])
            damaged[byte_index] ^= 1 << bit
            blobs[record_index] = bytes(damaged)
        return [decode(blob, owner) for blob in blobs]
