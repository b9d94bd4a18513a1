"""How do records get from the event loop to the disk and back as acknowledgements? Group commit.

Invariant: one thread writes; a commit takes all that gathered while the last one ran; callbacks run
on the event loop, in order of appending, after their commit. After a failure nothing is
acknowledged any more: a failed fsync is never tried again.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from mantle.core.crash_point import crash_point
from mantle.core.errors import JournalFault
from mantle.core.ids import TenantId
from mantle.journal.fence import Fence
from mantle.journal.history import AskHistory
from mantle.journal.port import Recovered
from mantle.journal.record import Record
from mantle.journal.store_port import JournalStore, StoreWaits

log = logging.getLogger("mantle.journal")

Word = TypeVar("Word")

RETRY_S: Final = 0.5
"""Between two tries while the disk is full."""

FORGET_EVERY_S: Final = 60.0
"""Between two looks for asks whose time is over."""

RELAXED_GATHER_S: Final = 0.02
"""How long `relaxed` gathers before it commits; with the commit it stays under 50 ms."""


class Policy(StrEnum):
    """`strict` acknowledges what is durable; `relaxed` at once, and may lose the last 50 ms."""

    STRICT = "strict"
    RELAXED = "relaxed"


@dataclass(slots=True)
class _Batch:
    records: list[Record] = field(default_factory=list)
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.records or self.callbacks)


class DurableJournal:
    """Implements `Journal` over a store. `start` binds it to the running event loop.

    `on_failed` is called once, on the loop, with a reason that is fit for the log and for clients.
    """

    def __init__(
        self,
        store: JournalStore,
        *,
        on_failed: Callable[[str], None],
        wall_s: Callable[[], float],
        policy: Policy = Policy.STRICT,
        keep_s: float = 3_600.0,
    ) -> None:
        self.commits = 0
        self._store = store
        self._on_failed = on_failed
        self._wall_s = wall_s
        self._policy = policy
        self._keep_s = keep_s
        self._fence = Fence()
        self._trouble = ""
        self._failed = False
        self._closing = False
        self._gathered = _Batch()
        self._is_committing = False
        self._awaiting: set[asyncio.Future[None]] = set()
        self._wake = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._write_forever, name="journal", daemon=True)

    # --- on the event loop ----------------------------------------------------------------------
    @property
    def trouble(self) -> str:
        return self._trouble

    @property
    def has_failed(self) -> bool:
        return self._failed

    async def recover(self) -> Recovered:
        """See `Journal.recover`; the writer starts here."""
        recovered = await asyncio.to_thread(self._store.recover)
        for ask in recovered.asks:
            for request in ask.requests:
                if request.finished is None:
                    self._fence.know(request.request.id, request.epoch)
        for request_id, epoch in recovered.orphans:
            self._fence.know(request_id, epoch)
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return recovered

    def append(self, records: Sequence[Record], committed: Callable[[], None]) -> None:
        """See `Journal.append`."""
        assert self._loop is not None, "recover comes first"
        if self._failed:
            raise JournalFault(self._trouble)
        for record in records:
            self._fence.admit(record)
        with self._wake:
            self._gathered.records += records
            if self._policy is Policy.STRICT:
                self._gathered.callbacks.append(committed)
            self._wake.notify()
        if self._policy is Policy.RELAXED:
            committed()

    async def history(self, ask_id: str) -> AskHistory | None:
        """See `Journal.history`; what was appended before is in it."""
        await self._written()
        return await asyncio.to_thread(self._store.history, ask_id)

    async def find_key(self, tenant_id: TenantId, key_digest: str) -> str | None:
        """See `Journal.find_key`."""
        await self._written()
        return await asyncio.to_thread(self._store.find_key, tenant_id, key_digest)

    async def close(self) -> None:
        """Commit what is queued, then stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._release()
        self._store.close()

    async def _written(self) -> None:
        """Return when all that was appended so far is committed (or will never be)."""
        assert self._loop is not None, "recover comes first"
        written = self._loop.create_future()
        with self._wake:
            if self._failed or not (self._gathered or self._is_committing):
                return
            self._gathered.callbacks.append(lambda: _resolve(written))
            self._wake.notify()
        self._awaiting.add(written)
        try:
            await written
        finally:
            self._awaiting.discard(written)

    def _acknowledge(self, callbacks: list[Callable[[], None]]) -> None:
        self._trouble = ""
        for callback in callbacks:
            try:
                callback()
            except Exception:  # one request's fault must not keep the others from their tokens
                log.exception("what should follow a commit failed")
        crash_point("after_acknowledge")

    def _is_full(self, reason: str) -> None:
        if not self._trouble:
            log.error("journal: %s; nothing is lost, requests wait until there is room", reason)
        self._trouble = reason

    def _fail(self, reason: str) -> None:
        self._failed, self._trouble = True, reason
        log.critical("journal: %s; nothing is acknowledged any more", reason)
        self._release()
        self._on_failed(reason)

    def _release(self) -> None:
        """Nothing more is committed: let nobody wait for it."""
        for written in self._awaiting:
            _resolve(written)

    # --- on the writer's thread -----------------------------------------------------------------
    def _write_forever(self) -> None:
        forgot_s = self._wall_s()
        try:
            while True:
                batch = self._next_batch()
                if batch is None:
                    return
                if batch:
                    self._commit(batch)
                now_s = self._wall_s()
                if not batch or now_s - forgot_s >= FORGET_EVERY_S:  # busy or not
                    forgot_s = now_s
                    with contextlib.suppress(StoreWaits):  # erasing needs room too: later
                        self._store.forget(int(now_s - self._keep_s))
        except JournalFault as fault:
            self._tell(self._fail, fault.message)
        except Exception:  # the thread's outermost edge
            log.exception("the journal's writer failed")
            self._tell(self._fail, "the journal's writer failed")

    def _next_batch(self) -> _Batch | None:
        """All that has gathered; an empty batch when nothing came for a while; None: closed."""
        with self._wake:
            self._is_committing = False
            if not self._gathered and not self._closing:
                self._wake.wait(FORGET_EVERY_S)
            if self._policy is Policy.RELAXED and self._gathered.records and not self._closing:
                self._wake.wait_for(lambda: self._closing, RELAXED_GATHER_S)
            if self._closing and not self._gathered:
                return None
            batch, self._gathered = self._gathered, _Batch()
            self._is_committing = bool(batch)
            return batch

    def _commit(self, batch: _Batch) -> None:
        crash_point("before_commit")
        while True:
            try:
                if batch.records:
                    self._store.commit(batch.records)
            except StoreWaits as full:
                self._tell(self._is_full, full.message)
                with self._wake:
                    if self._wake.wait_for(lambda: self._closing, RETRY_S):
                        return
            else:
                break
        self.commits += 1
        crash_point("after_commit")
        self._tell(self._acknowledge, batch.callbacks)

    def _tell(self, what: Callable[[Word], None], word: Word) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, word)


def _resolve(written: "asyncio.Future[None]") -> None:
    if not written.done():
        written.set_result(None)
