"""How does an ask's answer go out? As a stream with positions, or whole.

Invariant: nothing is said of an ask before it is durable; every frame but keepalives and errors
has an `id:` that its client can come back with.
"""

from collections.abc import Callable

from mantle.core.crash_point import crash_point
from mantle.gateway import sse
from mantle.gateway.answer import Answer
from mantle.gateway.cursor import Cursor, Numbering
from mantle.gateway.exchange import Exchange, Header
from mantle.gateway.held import HeldAsk
from mantle.gateway.parts import GatewaySettings
from mantle.gateway.queue_words import queue_headers
from mantle.gateway.text_events import TextEvent

INEXACT_HEADER = (b"x-mantle-resume-exact", b"false")
_INEXACT_COMMENT = sse.comment("resume.exact=false")


async def send_stream(
    exchange: Exchange,
    settings: GatewaySettings,
    ask: HeldAsk,
    answer: Answer,
    after: Cursor | None = None,
) -> None:
    """Hold the status line for a first token or an early error, then send as text comes.

    `after`: what the client has seen already is left out.
    """
    writer = ask.job.writer(ask.context)
    numbering = Numbering(len(ask.generations), after)
    events = await answer.take(min(settings.stream_hold_s, settings.ping_s))
    await ask.durable.wait()
    says_inexact = answer.resumed_inexactly
    exactness = [INEXACT_HEADER] if says_inexact else []
    await exchange.start(200, [*sse.HEADERS, *queue_headers(answer.queue_view()), *exactness])
    exchange.error_frame = writer.failure
    frames = [numbering.other(writer.opening(answer.usage()))]
    while True:
        if not says_inexact and answer.resumed_inexactly:
            says_inexact = True
            frames.append(_INEXACT_COMMENT)
        frames += [numbering.event(event, writer.event(event)) for event in events]
        if answer.is_done:
            frames.append(numbering.other(writer.closing(answer.usage())))
            await exchange.write(b"".join(frames), more=False)
            return
        if not events:
            frames.append(writer.keepalive(answer.queue_view()))
        chunk = b"".join(frames)
        if chunk:
            await exchange.write(chunk)
            crash_point("after_send")
        frames = []
        events = await answer.take(_silence_s(settings, answer))


async def send_whole(
    exchange: Exchange,
    settings: GatewaySettings,
    ask: HeldAsk,
    answer: Answer,
    headers: Callable[[], list[Header]],
) -> None:
    """Gather everything, then answer once; `headers` are asked for in the end."""
    events: list[TextEvent] = []
    while not answer.is_done:
        events += await answer.take(settings.ping_s)
    await ask.durable.wait()
    writer = ask.job.writer(ask.context)
    body = writer.whole(events, answer.usage(), answer.served_lane())
    exactness = [INEXACT_HEADER] if answer.resumed_inexactly else []
    await exchange.respond_json(body, [*headers(), *exactness])


def _silence_s(settings: GatewaySettings, answer: Answer) -> float:
    """How long a stream may say nothing: while it waits, it tells more often where it stands."""
    if answer.queue_view() is None:
        return settings.ping_s
    return min(settings.queue_ping_s, settings.ping_s)
