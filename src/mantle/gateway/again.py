"""How is an ask answered again? From what runs, or from what the journal kept.

Invariant: reading again never runs anything anew and costs nobody anything; foreign, unknown and
forgotten asks look the same.
"""

from collections.abc import Mapping

from mantle.core.errors import NotFound
from mantle.core.ids import RequestId
from mantle.gateway import formats
from mantle.gateway.cursor import Cursor
from mantle.gateway.follow import PlayedOut
from mantle.gateway.held import HeldAsk
from mantle.gateway.parts import GatewayParts
from mantle.gateway.reply import Job, Prompt, ReplyContext
from mantle.gateway.send import send_stream, send_whole
from mantle.gateway.serve import Turn, fingerprint
from mantle.journal.port import AskHistory
from mantle.scheduler.port import Generation
from mantle.text.port import ModelText


async def answer_again(turn: Turn, ask: HeldAsk, after: Cursor | None = None) -> None:
    """Answer as a further reader; `after`: a stream's client has seen so much already."""
    parts, exchange, account = turn.parts, turn.exchange, turn.account
    exchange.request_id = ask.asked.id
    account.model = ask.generations[0].request.model_id
    account.lane = ask.context.lane.value
    answer = ask.following_answer(parts.clock)
    ask.followers += 1
    exchange.on_gone(answer.client_left)
    try:
        if ask.job.stream:
            await send_stream(exchange, parts.settings, ask, answer, after)
        else:
            await send_whole(exchange, parts.settings, ask, answer, list)
    finally:
        exchange.on_gone(None)
        await answer.close()
        parts.asks.left(ask)


async def rebuilt(
    parts: GatewayParts,
    history: AskHistory,
    live: Mapping[RequestId, Generation] | None = None,
) -> HeldAsk:
    """An ask out of the journal; `live`: those of its requests that run.

    Raises `NotFound` when nothing of it was kept, `LoadFailed` without its model's tokeniser.
    """
    asked = history.asked
    if not asked.body:
        raise NotFound("nothing of this reply was kept")
    first = history.requests[0].request
    entry = parts.catalogue.find(first.model_id)
    if entry is None:
        raise NotFound(f"the model '{first.model_id}' is not there any more")
    job = formats.parse(asked.route, asked.body)
    text = await parts.texts.get(entry)
    context = ReplyContext(
        request_id=asked.id,
        model=job.model,
        created_s=asked.created_s,
        fingerprint=fingerprint(entry),
        lane=first.lane,
        text=text,
        prompts=await _prompts(parts, history, job, text),
    )
    running = live or {}
    generations: list[Generation] = [
        running.get(one.request.id) or PlayedOut(one) for one in history.requests
    ]
    ask = HeldAsk(asked, job, context, generations)
    ask.durable.set()
    return ask


async def _prompts(
    parts: GatewayParts, history: AskHistory, job: Job, text: ModelText
) -> tuple[Prompt, ...]:
    """The prompts by index; their text only where the reply repeats it."""
    if job.echoes:
        encode = job.encode
        return tuple(await parts.executor.run(history.asked.tenant_id, lambda: encode(text)))
    prompts = {
        choice.prompt_index: Prompt(request.request.prompt_tokens)
        for choice, request in zip(history.asked.choices, history.requests, strict=True)
    }
    return tuple(prompts[index] for index in sorted(prompts))
