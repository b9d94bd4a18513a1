"""What happens to one generation after its body was parsed? Tokenise, compile, enter, answer.

Invariant: whatever can be refused is refused before the first byte; once the stream has begun it
ends with a real finish or an error frame; whatever happens, no generation is left behind.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import mantle
from mantle.admission.port import Ask
from mantle.core.tenant import Principal
from mantle.gateway import field_checks as check
from mantle.gateway import models
from mantle.gateway.account import Account
from mantle.gateway.answer import Answer
from mantle.gateway.exchange import Exchange, Header
from mantle.gateway.held import HeldAsk
from mantle.gateway.output_format import OutputFormat
from mantle.gateway.parts import GatewayParts
from mantle.gateway.prompt_bound import BoundedText
from mantle.gateway.reply import Job, Prompt, ReplyContext
from mantle.gateway.send import send_stream, send_whole
from mantle.journal.port import Asked, Choice, Pins
from mantle.pool.port import CatalogueEntry
from mantle.scheduler.port import Generation
from mantle.text.port import ModelText

Encode = Callable[[ModelText], list[Prompt]]
Done = TypeVar("Done")

DEADLINE_HEADER = "x-mantle-deadline-ms"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request on its way through the gateway."""

    parts: GatewayParts
    exchange: Exchange
    account: Account
    principal: Principal


@dataclass(frozen=True, slots=True, repr=False)
class Paper:
    """What is written down of a request as it came: its format's label, its body, its key."""

    label: str
    raw: bytes
    key_digest: str = ""
    body_digest: str = ""

    def __repr__(self) -> str:
        return f"Paper({self.label}, {len(self.raw)} bytes)"


async def serve(turn: Turn, job: Job, paper: Paper) -> None:
    """Answer `job` anew. Raises any `MantleError`; the caller says it to the client."""
    parts, exchange, account = turn.parts, turn.exchange, turn.account
    deadline_ms = _deadline_ms(turn)
    entry = models.find(parts, turn.principal, job.model)
    account.model = entry.id
    exchange.rate_limits = lambda: parts.admission.limits(turn.principal, entry.id)
    exchange.watch()
    text = await parts.texts.get(entry)
    _check_bias(job, text)
    prompts, tokenise_ms = await _tokenise(turn, entry, job.encode, text)
    grammar = await _compiled(turn, job.output_format)
    entered = _enter(turn, job, entry, prompts, grammar, deadline_ms)
    ask = _hold(turn, job, entry, text, prompts, entered, paper)
    account.lane = ask.context.lane.value
    account.tokenised(tokenise_ms)
    answer = ask.own_answer(parts.clock, account)
    exchange.on_gone(lambda: answer.client_left(goes_on=ask.outlives_client))
    try:
        if job.stream:
            await send_stream(exchange, parts.settings, ask, answer)
        else:
            await send_whole(
                exchange, parts.settings, ask, answer, lambda: _phases(turn, answer, tokenise_ms)
            )
    finally:
        exchange.on_gone(None)
        if exchange.is_gone and ask.outlives_client:
            parts.asks.keep(ask, answer, lambda: settle(account, answer))
        else:
            await answer.close()
            parts.asks.drop(ask)
            settle(account, answer)


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
    parts = turn.parts
    started_ms = parts.clock.now_ms()
    bounded = BoundedText(text, parts.pool.window_tokens(entry.id))
    prompts = await _aside(turn, lambda: encode(bounded))
    return prompts, parts.clock.now_ms() - started_ms


async def _compiled(turn: Turn, output_format: OutputFormat | None) -> str:
    """The grammar ("": none); the reply names the keywords that it leaves out of account."""
    if output_format is None:
        return ""
    grammar = await _aside(turn, output_format.compile)
    if grammar.ignored:
        ignored = "; ".join(grammar.ignored).encode("ascii", "replace")
        turn.exchange.extra_headers.append((b"x-mantle-schema-ignored", ignored[:512]))
    return grammar.source


async def _aside(turn: Turn, work: Callable[[], Done]) -> Done:
    """CPU work in the tenant's turn, off the event loop. Raises `Cancelled` when the client leaves
    meanwhile.
    """
    exchange = turn.exchange
    running = asyncio.ensure_future(turn.parts.executor.run(turn.principal.tenant.id, work))

    def give_up() -> None:
        running.cancel()

    exchange.on_gone(give_up)
    try:
        done = await running
    except asyncio.CancelledError:
        exchange.raise_if_gone()
        raise
    finally:
        exchange.on_gone(None)
    exchange.raise_if_gone()
    return done


def _check_bias(job: Job, text: ModelText) -> None:
    bias_ids = (token_id for token_id, _ in job.sampling.logit_bias)
    check.check_token_ids(bias_ids, "logit_bias", vocab_size=text.vocab_size)


def _enter(
    turn: Turn,
    job: Job,
    entry: CatalogueEntry,
    prompts: list[Prompt],
    grammar: str,
    deadline_ms: float | None,
) -> list[tuple[Generation, int]]:
    """All prompts' branches (each with its prompt's index) or none: a refused prompt cancels
    those before it.
    """
    entered: list[tuple[Generation, int]] = []
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
                grammar=grammar,
                deadline_ms=deadline_ms,
                prompt_param=job.prompt_param,
            )
            generations = turn.parts.admission.enter(turn.principal, ask)
            entered += [(generation, prompt_index) for generation in generations]
    except BaseException:
        for generation, _ in entered:
            generation.cancel()
        raise
    return entered


def _hold(
    turn: Turn,
    job: Job,
    entry: CatalogueEntry,
    text: ModelText,
    prompts: list[Prompt],
    entered: list[tuple[Generation, int]],
    paper: Paper,
) -> HeldAsk:
    """Write the ask down, right after its requests, and let others find it."""
    parts, request_id = turn.parts, turn.exchange.request_id
    created_s = int(parts.clock.wall_s())
    first = entered[0][0].request
    asked = Asked(
        request_id,
        turn.principal.tenant.id,
        paper.label,
        paper.raw if first.keeps_content else b"",
        created_s,
        tuple(Choice(generation.request.id, index) for generation, index in entered),
        pins_of(entry),
        paper.key_digest,
        paper.body_digest,
        job.stream,
    )
    context = ReplyContext(
        request_id=request_id,
        model=job.model,
        created_s=created_s,
        fingerprint=fingerprint(entry),
        lane=first.lane,
        text=text,
        prompts=tuple(prompts),
    )
    ask = HeldAsk(asked, job, context, [generation for generation, _ in entered])
    parts.asks.add(ask)
    parts.journal.append([asked], ask.durable.set)
    return ask


def settle(account: Account, answer: Answer) -> None:
    """What the request used, also when it failed or its client left."""
    account.lane = answer.served_lane().value
    for generation in answer.generations:
        account.generated(generation.phases_so_far())
    account.detokenised(answer.detokenise_ms)
    account.used(answer.usage())


def pins_of(entry: CatalogueEntry) -> Pins:
    """What makes a model's tokens."""
    return Pins(entry.digest, entry.template_digest)


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


def _phases(turn: Turn, answer: Answer, tokenise_ms: float) -> list[Header]:
    """Where the time went, when the operator wants it told."""
    if not turn.parts.settings.expose_phases_header:
        return []
    phases = answer.generations[0].phases_so_far()
    times = {
        b"queue": phases.queue_ms,
        b"tokenise": tokenise_ms,
        b"prefill": phases.prefill_ms,
        b"decode": phases.decode_ms,
        b"detokenise": answer.detokenise_ms,
    }
    return [(b"x-mantle-%s-ms" % name, b"%.2f" % ms) for name, ms in times.items()]
