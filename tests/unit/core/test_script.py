"""The script file: strict, and silent about its content."""

import msgspec
import pytest

from mantle.core.script import Fault, ReplyRule, parse_script
from mantle.testing.scripts import byte_script, pause, script_of


def test_every_field_survives_the_file() -> None:
    script = script_of(
        "a", pause(5), replies=[ReplyRule(["b"], match="m")], step_ms=2, fault=Fault("stall")
    )
    assert parse_script(msgspec.json.encode(script)) == script
    raw = byte_script(b"\xff\x00")
    assert parse_script(msgspec.json.encode(raw)) == raw


@pytest.mark.parametrize(
    "content",
    [
        b'{"reply": [], "typo": 1}',
        b'{"reply": [{"bytes": "AA==", "token_id": 1}]}',
        b'{"reply": [{}]}',
        b'{"fault": {"kind": "explode"}}',
        b'{"tokens_per_step": 0}',
        b'{"window_tokens": 0}',
    ],
)
def test_wrong_scripts_are_refused(content: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse_script(content)


def test_repr_never_shows_what_will_be_said() -> None:
    script = script_of("secret", replies=[ReplyRule(["secret"], match="secret")])
    shown = repr(script) + repr(script.replies) + repr(byte_script(b"secret").reply)
    assert "secret" not in shown
