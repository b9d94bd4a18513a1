"""Would the simulator notice a journal that lies? Each broken part must be caught."""

from dataclasses import replace

import msgspec
import pytest

from mantle.core.epoch import Epoch
from mantle.journal.fence import Fence
from mantle.journal.port import Damage, Finished, Tokens
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.sim_cluster.paper_journal import PaperJournal
from mantle.testing.sim_cluster.paper_store import PaperStore
from mantle.testing.sim_cluster.restarts import MakeJournal
from mantle.testing.sim_cluster.run_seed import REAL_PARTS, Parts
from tests.simulation.sabotage import assert_caught, with_scheduler


# --- journals that lie to the server ------------------------------------------------------------
class ShowsBeforeCommit(PaperJournal):
    """It acknowledges tokens of which it has only heard."""

    early = Tokens

    def append(self, records, committed):
        is_early = all(isinstance(record, self.early) for record in records)
        super().append(records, (lambda: None) if is_early else committed)
        if is_early:
            committed()


class TellsEndBeforeCommit(ShowsBeforeCommit):
    """It acknowledges ends of which it has only heard."""

    early = Finished


class ShrugsOffFsync(PaperJournal):
    """It acknowledges a commit whose fsync failed."""

    def _fail(self, batch):
        self.disk.next_fsync_fails = False
        if self.disk.reached_the_platter():
            self.store.commit(batch.records)
        self._acknowledge(batch)


class DropsBatchOfFullStore(PaperJournal):
    """It tries no commit twice: what did not fit is gone."""

    def _land(self, batch):
        if self._in_flight is batch and self.disk.is_full(self.events.at_ms):
            self._acknowledge(batch)
        else:
            super()._land(batch)


class OpenFence(Fence):
    """It lets everything pass."""

    def admit(self, record):
        pass


def without_fence(*parts):
    """Older epochs write as they like."""
    return PaperJournal(*parts, fence=OpenFence())


class CountsTwice(PaperJournal):
    """The last token is paid for twice."""

    def append(self, records, committed):
        super().append([counted_twice(record) for record in records], committed)


class EndsTwice(PaperJournal):
    """Each end is written twice."""

    def append(self, records, committed):
        super().append(records, committed)
        self._gathered.records += [record for record in records if isinstance(record, Finished)]


# --- stores that lose or invent -----------------------------------------------------------------
class LosesTokens(PaperStore):
    """Of each commit the last tokens are lost."""

    def commit(self, records):
        kept = list(records)
        tokens = [record for record in kept if isinstance(record, Tokens)]
        if len(tokens) > 1:
            kept.remove(tokens[-1])
        super().commit(kept)


class ChangesTokens(PaperStore):
    """A bit of a token flips on the way."""

    def commit(self, records):
        super().commit([bit_flipped(record) for record in records])


class ForgetsRequest(PaperStore):
    """One ask is not found again."""

    def recover(self):
        recovered = super().recover()
        return replace(recovered, asks=recovered.asks[:-1])


class FindsOneTokenLess(PaperStore):
    """The last durable token is not found."""

    def history(self, request_id):
        history = super().history(request_id)
        history.output, history.output_count = history.output[:-1], len(history.output[:-1])
        return history


class FindsOneTokenMore(PaperStore):
    """A token is found that nobody wrote."""

    def history(self, request_id):
        history = super().history(request_id)
        history.output.append(0)
        history.output_count += 1
        return history


class BelievesDamage(PaperStore):
    """Checksums are not looked at."""

    def recover(self):
        self._damage.clear()
        return super().recover()


class SetsSoundAside(PaperStore):
    """A sound ask is quarantined."""

    def recover(self):
        recovered = super().recover()
        damaged = tuple(Damage(ask.asked.id, "on purpose") for ask in recovered.asks[:1])
        return replace(recovered, asks=recovered.asks[1:], damaged=recovered.damaged + damaged)


# --- servers that go on from the wrong place ----------------------------------------------------
class GoesOnOneTokenBack(Scheduler):
    """A request of an earlier server says its last token again."""

    def restore(self, request, epoch, resume_from, now_ms):
        return super().restore(request, epoch, max(0, resume_from - 1), now_ms)


class GoesOnOneTokenAhead(Scheduler):
    """A request of an earlier server leaves a token out."""

    def restore(self, request, epoch, resume_from, now_ms):
        return super().restore(request, epoch, resume_from + 1, now_ms)


class UsesEpochAgain(Scheduler):
    """The new server's attempt cannot be told from the old one's."""

    def restore(self, request, epoch, resume_from, now_ms):
        return super().restore(request, Epoch(max(1, epoch - 1)), resume_from, now_ms)


def counted_twice(record):
    if not isinstance(record, Finished):
        return record
    output_tokens = record.usage.output_tokens + 1
    return msgspec.structs.replace(record, usage=replace(record.usage, output_tokens=output_tokens))


def bit_flipped(record):
    if not isinstance(record, Tokens) or not record.token_ids:
        return record
    return msgspec.structs.replace(record, token_ids=[*record.token_ids[:-1], 1 << 17])


def with_journal(kind: MakeJournal) -> Parts:
    return replace(REAL_PARTS, journal=kind)


def with_store(kind: type[PaperStore]) -> Parts:
    return replace(REAL_PARTS, store=kind)


@pytest.mark.parametrize(
    ("parts", "promise"),
    [
        (with_journal(ShowsBeforeCommit), "shown before they were durable"),
        (with_journal(TellsEndBeforeCommit), "told of an end that is not durable"),
        (with_journal(ShrugsOffFsync), "is not durable|before they were durable"),
        (with_journal(DropsBatchOfFullStore), "shown before they were durable"),
        (with_journal(without_fence), "came after"),
        (with_journal(CountsTwice), "usage of"),
        (with_journal(EndsTwice), "a record came after its end"),
        (with_store(LosesTokens), "was written after|shown before they were durable"),
        (with_store(ChangesTokens), "changed in the journal"),
        (with_store(ForgetsRequest), "is lost, though its ask was durable"),
        (with_store(FindsOneTokenLess), "tokens were found"),
        (with_store(FindsOneTokenMore), "tokens were found"),
        (with_store(BelievesDamage), "were believed"),
        (with_store(SetsSoundAside), "is sound, but was set aside"),
        (with_scheduler(GoesOnOneTokenBack), "resumes from"),
        (with_scheduler(GoesOnOneTokenAhead), "resumes from"),
        (with_scheduler(UsesEpochAgain), "was used twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sabotage_is_caught(parts, promise):
    assert_caught(parts, promise)
