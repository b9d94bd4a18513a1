"""Which wire format is a body in? By its route's label, as it also stands in the journal."""

from collections.abc import Callable
from typing import Final

from mantle.core.errors import NotFound
from mantle.gateway import anthropic_messages, openai_chat, openai_completions
from mantle.gateway.body import decode
from mantle.gateway.reply import Job

CHAT: Final = "chat_completions"
COMPLETIONS: Final = "completions"
MESSAGES: Final = "messages"

_PARSERS: Final[dict[str, Callable[[bytes], Job]]] = {
    CHAT: lambda raw: openai_chat.parse(decode(openai_chat.decoder, raw)),
    COMPLETIONS: lambda raw: openai_completions.parse(decode(openai_completions.decoder, raw)),
    MESSAGES: lambda raw: anthropic_messages.parse(decode(anthropic_messages.decoder, raw)),
}


def parse(label: str, raw: bytes) -> Job:
    """What a body asks for. Raises `InvalidRequest` for whatever cannot be served."""
    parser = _PARSERS.get(label)
    if parser is None:
        raise NotFound("the reply is in a format that this server does not know")
    return parser(raw)
