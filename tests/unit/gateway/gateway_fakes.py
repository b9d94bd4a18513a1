"""Stand-ins for the stages right of the gateway, and the gateway built on them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gateway_client import Call, Reply
from piece_text import PieceText

from mantle.admission.port import Ask, RateLimits, TenantAdmin
from mantle.core.clock import Clock, SystemClock
from mantle.core.errors import Cancelled, PromptTooLong, Unauthenticated, UnknownModel
from mantle.core.ids import ModelId, ProjectId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason
from mantle.core.request import Request
from mantle.core.tenant import Principal, Tenant
from mantle.core.tokens import TokenLogprob, Usage
from mantle.gateway.fair_executor import FairExecutor
from mantle.gateway.held import HeldAsks
from mantle.gateway.parts import GatewayParts, GatewaySettings
from mantle.gateway.server import build_app
from mantle.journal.port import Journal
from mantle.journal.stores.ephemeral import EphemeralJournal
from mantle.pool.port import CatalogueEntry, ModelState, ResidencyState
from mantle.scheduler.port import (
    Ended,
    Phases,
    QueuesReport,
    QueueView,
    SharesReport,
    TokenChunk,
)

KEY = "sk-test"
WINDOW_TOKENS = 4096

Step = tuple[str | bytes, ...] | asyncio.Event | Exception
"""One step of a script: a chunk of tokens, a wait, or a failure."""


@dataclass
class Script:
    """What each generation does."""

    steps: Sequence[Step] = (("hello",), (" world",))
    finish: FinishReason = FinishReason.END
    cached_tokens: int = 0
    logprob: float = -0.5
    view: QueueView | None = None
    view_at: Callable[[], QueueView | None] | None = None  # asked each time, in place of `view`


class FakeGeneration:
    """Replays a script; counts how often it was cancelled or stopped."""

    def __init__(self, request: Request, admission: "FakeAdmission", text: PieceText) -> None:
        self._reads = admission.reads
        script = admission.script
        if request.branch_index > 0 and admission.sibling_script is not None:
            script = admission.sibling_script
        self.request = request
        self.ended: Ended | None = None
        self.resumed_inexactly = False
        self.cancel_count = 0
        self.stopped_at: int | None = None
        self._script = script
        self._text = text
        self._output_tokens = 0
        self._gone = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[TokenChunk]:
        self._reads.release()
        owes_prompt = self.request.prompt_logprobs
        for step in self._script.steps:
            if isinstance(step, asyncio.Event):
                await self._wait(step)
                continue
            if isinstance(step, Exception):
                raise step
            left = self.request.max_output_tokens - self._output_tokens
            token_ids = tuple(self._text.piece(piece) for piece in step)[:left]
            prompt = self._prompt_logprobs() if owes_prompt else None
            owes_prompt = False
            yield TokenChunk(self._output_tokens, token_ids, self._logprobs(token_ids), prompt)
            self._output_tokens += len(token_ids)
            if self._output_tokens >= self.request.max_output_tokens:
                self._end(FinishReason.LENGTH)
                return
        self._end(self._script.finish)

    async def _wait(self, event: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._gone.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._gone.is_set():
            raise Cancelled("cancelled")

    def _end(self, finish: FinishReason) -> None:
        lane = self.request.lane
        self.ended = Ended(finish, self.usage_so_far(), self.phases_so_far(), lane)

    def _logprobs(self, token_ids: tuple[int, ...]) -> tuple[TokenLogprob, ...] | None:
        count = self.request.sampling.logprobs_count
        if count is None:
            return None
        return tuple(self._scored(token_id, self._script.logprob, count) for token_id in token_ids)

    def _prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        count = self.request.sampling.logprobs_count or 0
        first, *rest = self.request.prompt_tokens
        return (TokenLogprob(first, None), *(self._scored(token, -1.5, count) for token in rest))

    def _scored(self, token_id: int, logprob: float, count: int) -> TokenLogprob:
        others = [(65 + place, -2.0 - place) for place in range(count - 1)]
        return TokenLogprob(token_id, logprob, (*((token_id, logprob),), *others)[:count])

    def queue_view(self) -> QueueView | None:
        view_at = self._script.view_at
        return self._script.view if view_at is None else view_at()

    def usage_so_far(self) -> Usage:
        prompt_tokens = len(self.request.prompt_tokens)
        return Usage(prompt_tokens, self._script.cached_tokens, self._output_tokens)

    def phases_so_far(self) -> Phases:
        return Phases(1.0, 2.0, 3.0)

    def cancel(self) -> None:
        self.cancel_count += 1
        self._gone.set()

    def stop_at(self, output_tokens: int) -> None:
        self.stopped_at = output_tokens


_LANES = {"priority": Lane.PRIORITY, "flex": Lane.FLEX, "reserved": Lane.RESERVED}


class FakeAdmission:
    """One key, one tenant; every ask replays `script`, or raises `refusal`."""

    def __init__(self, text: PieceText) -> None:
        self.script = Script()
        self.sibling_script: Script | None = None  # of branches after the first
        self.reads = asyncio.Semaphore(0)  # released once for each generation that is read
        self.refusal: Exception | None = None
        self.refuse_from_ask = 0
        self.asks: list[Ask] = []
        self.rate_limits: RateLimits | None = None
        self.generations: list[FakeGeneration] = []
        self._text = text

    def authenticate(self, api_key: str | None) -> Principal:
        if api_key != KEY:
            raise Unauthenticated("this API key is not valid")
        return Principal(Tenant(TenantId("tenant-a")), ProjectId("project-a"))

    def check_model(self, principal: Principal, model_id: ModelId) -> None:
        if model_id == "archived":
            raise UnknownModel("the model is archived")

    def limits(self, principal: Principal, model_id: ModelId) -> RateLimits | None:
        return self.rate_limits

    def enter(self, principal: Principal, ask: Ask) -> list[FakeGeneration]:
        self.asks.append(ask)
        if self.refusal is not None and len(self.asks) > self.refuse_from_ask:
            raise self.refusal
        room = WINDOW_TOKENS - len(ask.prompt_tokens)
        if room < 1:
            raise PromptTooLong(
                prompt_tokens=len(ask.prompt_tokens),
                window_tokens=WINDOW_TOKENS - 1,
                param=ask.prompt_param,
            )
        generations = [
            FakeGeneration(self._request(principal, ask, branch, room), self, self._text)
            for branch in range(ask.n)
        ]
        self.generations += generations
        return generations

    def _request(self, principal: Principal, ask: Ask, branch: int, room: int) -> Request:
        return Request(
            id=RequestId(f"r{len(self.generations)}.{branch}"),
            tenant_id=principal.tenant.id,
            project_id=principal.project_id,
            model_id=ask.model_id,
            lane=_LANES.get(ask.service_tier or "", Lane.STANDARD),
            prompt_tokens=ask.prompt_tokens,
            sampling=ask.sampling,
            max_output_tokens=min(ask.max_output_tokens or room, room),
            accepted_ms=0.0,
            branch_index=branch,
            prompt_logprobs=ask.prompt_logprobs,
        )


def entry(name: str, **changes: Any) -> CatalogueEntry:
    values: dict[str, Any] = {
        "id": ModelId(name),
        "driver": "scripted",
        "path": "",
        "digest": "d" * 64,
        "size_bytes": 1,
        "window_tokens": WINDOW_TOKENS,
        "created_s": 1_700_000_000,
        "display_name": name.upper(),
    }
    return CatalogueEntry(**{**values, **changes})


class FakeCatalogue:
    def __init__(self) -> None:
        self.models = [
            entry("m", aliases=("claude-sonnet-4",)),
            entry("archived", state=ModelState.ARCHIVED),
        ]

    def entries(self) -> list[CatalogueEntry]:
        return self.models

    def find(self, name: str) -> CatalogueEntry | None:
        named = (model for model in self.models if name in (model.id, *model.aliases))
        return next(named, None)


class FakePool:
    def residency(self, model_id: ModelId) -> ResidencyState:
        return ResidencyState.READY

    def window_tokens(self, model_id: ModelId) -> int:
        return WINDOW_TOKENS


class FakeTexts:
    def __init__(self, text: PieceText) -> None:
        self.text = text
        self.failure: Exception | None = None

    async def get(self, entry: CatalogueEntry) -> PieceText:
        if self.failure is not None:
            raise self.failure
        return self.text


class FakeHealth:
    alive = True
    ready = True

    def is_alive(self) -> bool:
        return self.alive

    def is_ready(self) -> bool:
        return self.ready

    def reason(self) -> str:
        return "no worker"


class RecordingMetrics:
    """Keeps every observation as (name, values)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def request_finished(self, **values: Any) -> None:
        self.seen.append(("request_finished", values))

    def tokens_used(self, **values: Any) -> None:
        self.seen.append(("tokens_used", values))

    def queue_wait(self, wait_ms: float, **values: Any) -> None:
        self.seen.append(("queue_wait", {"ms": wait_ms, **values}))

    def ttft(self, ttft_ms: float, **values: Any) -> None:
        self.seen.append(("ttft", {"ms": ttft_ms, **values}))

    def token_gap(self, gap_ms: float, **values: Any) -> None:
        self.seen.append(("token_gap", {"ms": gap_ms, **values}))

    def phase(self, phase: str, phase_ms: float, **values: Any) -> None:
        self.seen.append((phase, {"ms": phase_ms, **values}))

    def render(self) -> tuple[bytes, str]:
        return b"# metrics\n", "text/plain; version=0.0.4"

    def of(self, name: str) -> list[dict[str, Any]]:
        return [values for seen, values in self.seen if seen == name]


class FakeOverview:
    """Shows what a test put in."""

    shown_shares = SharesReport(0.0, 0.0, (), (), ())
    shown_queues = QueuesReport((), ())

    def shares(self) -> SharesReport:
        return self.shown_shares

    def queues(self) -> QueuesReport:
        return self.shown_queues


@dataclass
class Harness:
    """The gateway with fakes around it."""

    settings: GatewaySettings = field(default_factory=GatewaySettings)
    admin: TenantAdmin | None = None
    journal: Journal = field(default_factory=EphemeralJournal)
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.text = PieceText()
        self.admission = FakeAdmission(self.text)
        self.catalogue = FakeCatalogue()
        self.texts = FakeTexts(self.text)
        self.health = FakeHealth()
        self.metrics = RecordingMetrics()
        self.executor = ThreadPoolExecutor(1)
        self.asks = HeldAsks(self.clock, grace_s=self.settings.reattach_grace_s)
        self.overview = FakeOverview()
        self.app = build_app(
            GatewayParts(
                admission=self.admission,
                catalogue=self.catalogue,
                pool=FakePool(),
                texts=self.texts,
                executor=FairExecutor(self.executor, 1),
                clock=self.clock,
                health=self.health,
                metrics=self.metrics,
                journal=self.journal,
                asks=self.asks,
                overview=self.overview,
                settings=self.settings,
                admin=self.admin,
            )
        )

    def script(self, *steps: Step, **changes: Any) -> None:
        self.admission.script = Script(steps, **changes)

    def open(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        key: str | None = KEY,
    ) -> Call:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        return Call(self.app, method, path, b"" if body is None else raw, sent)

    async def call(self, path: str, body: Any = None, **kwargs: Any) -> Reply:
        return await self.open(path, body, **kwargs).finished()

    async def get(self, path: str, **kwargs: Any) -> Reply:
        return await self.call(path, method="GET", **kwargs)

    async def chat(self, **fields: Any) -> Reply:
        return await self.call("/v1/chat/completions", chat_body(**fields))

    async def messages(self, **fields: Any) -> Reply:
        return await self.call("/v1/messages", message_body(**fields))

    async def completions(self, **fields: Any) -> Reply:
        body = {"model": "m", "prompt": "go", **fields}
        return await self.call("/v1/completions", body)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": user("Hello"), **fields}


def message_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 500, "messages": user("Hello"), **fields}
