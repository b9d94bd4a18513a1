"""What happens to one generation after its body was parsed? Tokenise, enter, answer.

Invariant: whatever can be refused is refused before the first byte; once the stream has begun it
ends with a real finish or an error frame; whatever happens, no generation is left behind.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import mantle
from mantle.admission.port import Ask
from mantle.core.tenant import Principal
from mantle.gateway import field_checks as check
from mantle.gateway import models, sse
from mantle.gateway.account import Account
from mantle.gateway.answer import Answer, Source
from mantle.gateway.branch import Branch
from mantle.gateway.exchange import Exchange, Header
from mantle.gateway.parts import GatewayParts
from mantle.gateway.prompt_bound import BoundedText
from mantle.gateway.reply import Job, Prompt, ReplyContext, ReplyWriter
from mantle.gateway.text_events import TextEvent
from mantle.pool.port import CatalogueEntry
from mantle.scheduler.port import Generation
from mantle.text.port import ModelText

Encode = Callable[[ModelText], list[Prompt]]

DEADLINE_HEADER = "x-mantle-deadline-ms"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request on its way through the gateway."""

    parts: GatewayParts
    exchange: Exchange
    account: Account
    principal: Principal


async def serve(turn: Turn, job: Job) -> None:
    """Answer `job`. Raises any `MantleError`; the caller says it to the client."""
    parts, exchange, account = turn.parts, turn.exchange, turn.account
    deadline_ms = _deadline_ms(turn)
    entry = models.find(parts, turn.principal, job.model)
    account.model = entry.id
    exchange.rate_limits = lambda: parts.admission.limits(turn.principal, entry.id)
    exchange.watch()
    text = await parts.texts.get(entry)
    _check_bias(job, text)
    prompts, tokenise_ms = await _tokenise(turn, entry, job.encode, text)
    sources = _enter(turn, job, entry, text, prompts, deadline_ms)
    account.lane = sources[0].generation.request.lane.value
    account.tokenised(tokenise_ms)
    answer = Answer(sources, clock=parts.clock, times=account)
    exchange.on_gone(answer.client_left)
    try:
        writer = job.writer(_context(turn, job, entry, text, prompts, sources))
        if job.stream:
            await _stream(turn, answer, writer)
        else:
            await _whole(turn, answer, writer, sources, tokenise_ms)
    finally:
        exchange.on_gone(None)
        await answer.close()
        _settle(account, answer, sources)


async def count(turn: Turn, model: str, encode: Encode) -> int:
    """Input tokens of a prompt that is not run."""
    entry = models.find(turn.parts, turn.principal, model)
    turn.account.model = entry.id
    text = await turn.parts.texts.get(entry)
    prompts, tokenise_ms = await _tokenise(turn, entry, encode, text)
    turn.account.tokenised(tokenise_ms)
    return sum(len(prompt.token_ids) for prompt in prompts)


async def _tokenise(
    turn: Turn, entry: CatalogueEntry, encode: Encode, text: ModelText
) -> tuple[list[Prompt], float]:
    """Prompts, made off the event loop in the tenant's turn, and how long it took (ms).

    Raises `Cancelled` when the client leaves meanwhile, `PromptTooLong` before the work is done.
    """
    parts, exchange = turn.parts, turn.exchange
    started_ms = parts.clock.now_ms()
    bounded = BoundedText(text, parts.pool.window_tokens(entry.id))
    tenant_id = turn.principal.tenant.id
    work = asyncio.ensure_future(parts.executor.run(tenant_id, lambda: encode(bounded)))
    exchange.on_gone(lambda: _give_up(work))
    try:
        prompts = await work
    except asyncio.CancelledError:
        exchange.raise_if_gone()
        raise
    finally:
        exchange.on_gone(None)
    exchange.raise_if_gone()
    return prompts, parts.clock.now_ms() - started_ms


def _give_up(work: "asyncio.Future[list[Prompt]]") -> None:
    work.cancel()


def _check_bias(job: Job, text: ModelText) -> None:
    bias_ids = (token_id for token_id, _ in job.sampling.logit_bias)
    check.check_token_ids(bias_ids, "logit_bias", vocab_size=text.vocab_size)


def _enter(
    turn: Turn,
    job: Job,
    entry: CatalogueEntry,
    text: ModelText,
    prompts: list[Prompt],
    deadline_ms: float | None,
) -> list[Source]:
    """All prompts' branches or none: a refused prompt cancels those before it."""
    sources: list[Source] = []
    try:
        for prompt_index, prompt in enumerate(prompts):
            ask = Ask(
                model_id=entry.id,
                prompt_tokens=prompt.token_ids,
                sampling=job.sampling,
                max_output_tokens=job.max_output_tokens,
                n=job.n,
                service_tier=job.service_tier,
                stop_strings=job.stop_strings,
                prompt_logprobs=job.prompt_logprobs,
                ignore_eos=job.ignore_eos,
                deadline_ms=deadline_ms,
                prompt_param=job.prompt_param,
            )
            for generation in turn.parts.admission.enter(turn.principal, ask):
                branch = _branch(job, text, choice_index=len(sources))
                sources.append(Source(generation, branch, prompt_index))
    except BaseException:
        for source in sources:
            source.generation.cancel()
        raise
    return sources


def _branch(job: Job, text: ModelText, *, choice_index: int) -> Branch:
    return Branch(
        text,
        choice_index=choice_index,
        stop_strings=job.stop_strings,
        echoes=job.echoes,
        scores=job.sampling.logprobs_count is not None,
        drops_output=job.drops_output,
    )


async def _stream(turn: Turn, answer: Answer, writer: ReplyWriter) -> None:
    """Hold the status line for a first token or an early error, then send as text comes."""
    exchange, settings = turn.exchange, turn.parts.settings
    events = await answer.take(min(settings.stream_hold_s, settings.ping_s))
    await exchange.start(200, [*sse.HEADERS, *_queue_headers(answer)])
    exchange.error_frame = writer.failure
    frames = [writer.opening(answer.usage())]
    while True:
        frames += map(writer.event, events)
        if answer.is_done:
            frames.append(writer.closing(answer.usage()))
            await exchange.write(b"".join(frames), more=False)
            return
        if not events:
            frames.append(writer.keepalive(answer.queue_view()))
        chunk = b"".join(frames)
        if chunk:
            await exchange.write(chunk)
        frames = []
        events = await answer.take(settings.ping_s)


async def _whole(
    turn: Turn, answer: Answer, writer: ReplyWriter, sources: list[Source], tokenise_ms: float
) -> None:
    """Gather everything, then answer once."""
    events: list[TextEvent] = []
    while not answer.is_done:
        events += await answer.take(turn.parts.settings.ping_s)
    body = writer.whole(events, answer.usage(), answer.served_lane())
    headers: list[Header] = []
    if turn.parts.settings.expose_phases_header:
        headers = _phase_headers(sources[0].generation, tokenise_ms, answer.detokenise_ms)
    await turn.exchange.respond_json(body, headers)


def _settle(account: Account, answer: Answer, sources: list[Source]) -> None:
    """What the request used, also when it failed or its client left."""
    account.lane = answer.served_lane().value
    for source in sources:
        account.generated(source.generation.phases_so_far())
    account.detokenised(answer.detokenise_ms)
    account.used(answer.usage())


def _context(
    turn: Turn,
    job: Job,
    entry: CatalogueEntry,
    text: ModelText,
    prompts: list[Prompt],
    sources: list[Source],
) -> ReplyContext:
    return ReplyContext(
        request_id=turn.exchange.request_id,
        model=job.model,
        created_s=int(turn.parts.clock.wall_s()),
        fingerprint=fingerprint(entry),
        lane=sources[0].generation.request.lane,
        text=text,
        prompts=tuple(prompts),
    )


def fingerprint(entry: CatalogueEntry) -> str:
    """Changes whenever the build, the weights or the template do."""
    parts = (mantle.__version__, entry.digest, entry.template_digest)
    return "fp_" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _deadline_ms(turn: Turn) -> float | None:
    """The client's own deadline, in milliseconds from its arrival."""
    value = turn.exchange.headers.get(DEADLINE_HEADER)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and 0 < len(value) < 12):
        raise check.invalid(DEADLINE_HEADER, "must be a whole number of milliseconds")
    return turn.exchange.started_ms + int(value)


def _queue_headers(answer: Answer) -> list[Header]:
    view = answer.queue_view()
    if view is None:
        return []
    headers = [(b"x-mantle-queue-position", b"%d" % view.position)]
    if view.estimated_wait_ms is not None:
        headers.append((b"x-mantle-estimated-wait-ms", b"%.0f" % view.estimated_wait_ms))
    return headers


def _phase_headers(
    generation: Generation, tokenise_ms: float, detokenise_ms: float
) -> list[Header]:
    phases = generation.phases_so_far()
    times = {
        b"queue": phases.queue_ms,
        b"tokenise": tokenise_ms,
        b"prefill": phases.prefill_ms,
        b"decode": phases.decode_ms,
        b"detokenise": detokenise_ms,
    }
    return [(b"x-mantle-%s-ms" % name, b"%.2f" % ms) for name, ms in times.items()]
