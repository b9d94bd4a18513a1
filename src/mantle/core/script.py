"""What does the fake engine say? A `*.script.json` file: canned replies, dials, and one fault.

Invariant: a script fixes its vocabulary. Ids 0–255 are single bytes, then one id for each distinct
piece of another length in order of appearance, then the special tokens; so the driver and the
tokeniser, each from the same file, agree on every id.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

SPECIAL_NAMES: Final = ("bos", "turn", "end")
_BYTE_IDS = 256


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """One element of a reply that is not plain text; exactly one field is set.

    `raw` (in the file `bytes`, base64) is one token of these bytes; `special` a special token;
    `token_id` any id; `pause_ms` no token but a wait before the next one.
    """

    raw: bytes | None = msgspec.field(default=None, name="bytes")
    special: Literal["bos", "turn"] | None = None
    token_id: int | None = None
    pause_ms: float | None = None

    def __post_init__(self) -> None:
        fields = (self.raw, self.special, self.token_id, self.pause_ms)
        if sum(value is not None for value in fields) != 1:
            raise ValueError("a piece has exactly one of: bytes, special, token_id, pause_ms")

    def __repr__(self) -> str:
        return f"Piece({len(self.raw or b'')} bytes)"


class ReplyRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`reply` is given when the prompt's text contains `match` (null: always)."""

    reply: list[str | Piece]
    match: str | None = None

    def __repr__(self) -> str:
        return f"ReplyRule({len(self.reply)} pieces)"


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What breaks, and when: in the step after a sequence got `after_output_tokens` tokens.

    `die` ends the process, `stall` holds the step for `stall_ms`, `fail_sequence` breaks that one
    sequence, `fail_load` refuses every load (the other fields do not count). Strikes at most
    `times` times a load (null: always), only sequences whose prompt contains `match`, and not one
    that was resumed with that many tokens: so a resumed request gets past the place where it died.
    """

    kind: Literal["die", "stall", "fail_sequence", "fail_load"]
    after_output_tokens: int = 0
    times: int | None = 1
    match: str | None = None
    stall_ms: float = 3_600_000.0


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fake engine's words and dials. All zero: everything is instant.

    Replies: the first of `replies` that matches the prompt, else `reply`. `choose: seed` takes
    replies[seed mod n] instead (branches of one prompt differ, and still resume). With
    `echo_last_user` the reply is what the last user said, byte by byte. After its last piece a
    sequence ends its turn, unless `repeat` (or the request's `ignore_eos`) starts it over.
    `slots` 0 means as many as the settings say. `prefill_tokens_per_s` 0 is instant.
    `tokens_per_step` pieces come in one engine step (the end counts as one). `prefix_reuse` counts
    prompt prefixes seen before as cached. `bos` makes prompts begin with a start token.
    """

    reply: list[str | Piece] = []
    replies: list[ReplyRule] = []
    choose: Literal["match", "seed"] = "match"
    echo_last_user: bool = False
    repeat: bool = False
    window_tokens: int = 8192
    slots: int = 0
    load_ms: float = 0.0
    prefill_tokens_per_s: float = 0.0
    step_ms: float = 0.0
    tokens_per_step: int = 1
    kv_bytes_per_token: int = 0
    prefix_reuse: bool = False
    bos: bool = False
    fault: Fault | None = None

    def __post_init__(self) -> None:
        if self.window_tokens < 1 or self.tokens_per_step < 1:
            raise ValueError("window_tokens and tokens_per_step must be at least 1")

    def __repr__(self) -> str:
        return f"Script({len(self.reply)} pieces, {len(self.replies)} rules)"


def parse_script(content: bytes) -> Script:
    """Raises `msgspec.MsgspecError` (a ValueError) that names the wrong key."""
    return msgspec.json.decode(content, type=Script)


def read_script(path: Path) -> Script:
    """Raises `OSError` or `msgspec.MsgspecError`."""
    return parse_script(path.read_bytes())


@dataclass(frozen=True, slots=True, repr=False)
class ReplyTokens:
    """A reply as token ids; `pauses_ms` by the index of the token that the pause comes before."""

    token_ids: tuple[int, ...]
    pauses_ms: dict[int, float]

    def token_at(self, index: int, *, endless: bool) -> int | None:
        """The id at this output position; None where the turn ends."""
        length = len(self.token_ids)
        if index < length:
            return self.token_ids[index]
        return self.token_ids[index % length] if endless and length else None

    def pause_ms_before(self, index: int) -> float:
        return self.pauses_ms.get(index, 0.0)


class Vocabulary:
    """The ids of one script, both ways."""

    def __init__(self, script: Script) -> None:
        self._bytes_by_id = [bytes([value]) for value in range(_BYTE_IDS)]
        self._id_by_bytes = {piece: token_id for token_id, piece in enumerate(self._bytes_by_id)}
        for piece in _text_pieces(script):
            if piece not in self._id_by_bytes:
                self._id_by_bytes[piece] = len(self._bytes_by_id)
                self._bytes_by_id.append(piece)
        first_special_id = len(self._bytes_by_id)
        self.bos_id = first_special_id
        self.turn_id = first_special_id + 1
        self.end_id = first_special_id + 2
        self.size = first_special_id + len(SPECIAL_NAMES)

    def encode(self, text: str) -> list[int]:
        """One id a byte: text of clients never becomes a piece or a special token."""
        return list(text.encode("utf-8", "surrogatepass"))

    def token_bytes(self, token_id: int) -> bytes:
        """Empty for special tokens and for ids outside the vocabulary."""
        return self._bytes_by_id[token_id] if 0 <= token_id < self.bos_id else b""

    def bytes_of(self, token_ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, token_ids))

    def special_name(self, token_id: int) -> str | None:
        index = token_id - self.bos_id
        return SPECIAL_NAMES[index] if 0 <= index < len(SPECIAL_NAMES) else None

    def reply_tokens(self, pieces: Sequence[str | Piece]) -> ReplyTokens:
        token_ids: list[int] = []
        pauses_ms: dict[int, float] = {}
        for piece in pieces:
            if isinstance(piece, Piece) and piece.pause_ms is not None:
                pauses_ms[len(token_ids)] = pauses_ms.get(len(token_ids), 0.0) + piece.pause_ms
            else:
                token_ids.append(self._piece_id(piece))
        return ReplyTokens(tuple(token_ids), pauses_ms)

    def _piece_id(self, piece: str | Piece) -> int:
        if isinstance(piece, str):
            return self._id_by_bytes[piece.encode()]
        if piece.raw is not None:
            return self._id_by_bytes[piece.raw]
        if piece.token_id is not None:
            return piece.token_id
        return self.bos_id if piece.special == "bos" else self.turn_id


def _text_pieces(script: Script) -> Iterable[bytes]:
    for pieces in (script.reply, *(rule.reply for rule in script.replies)):
        for piece in pieces:
            if isinstance(piece, str):
                yield piece.encode()
            elif piece.raw is not None:
                yield piece.raw
