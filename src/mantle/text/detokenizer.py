"""Which text is complete by now? Bytes of tokens become characters, none of them ever split.

Invariant: however tokens are grouped, the joined texts are the same; U+FFFD stands only for bytes
that no later token could complete.
"""

import codecs
from collections.abc import Callable, Sequence


class Utf8Detokenizer:
    """`Detokenizer` over a token → bytes function. One request, one reader."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
