"""How does a test write what the fake engine says? Builders of scripts, and of their files.

Invariant: dials are given by name to `Script` itself, so a dial that does not exist is an error.
"""

from pathlib import Path
from typing import Any

import msgspec

from mantle.core.script import Piece, Script
from mantle.engine.port import EngineSettings, LoadSpec


def script_of(*pieces: str | Piece, **dials: Any) -> Script:
    """A script that says these pieces, one token each; `dials` are the other fields of `Script`."""
    return Script(reply=list(pieces), **dials)


def byte_script(content: bytes, *, piece_bytes: int = 1, **dials: Any) -> Script:
    """A script that says these bytes in tokens of `piece_bytes` each, wherever characters end."""
    starts = range(0, len(content), piece_bytes)
    pieces = (Piece(raw=content[start : start + piece_bytes]) for start in starts)
    return script_of(*pieces, **dials)


def pause(pause_ms: float) -> Piece:
    """A wait before the next token."""
    return Piece(pause_ms=pause_ms)


def write_script(folder: Path, script: Script, *, name: str = "fake") -> Path:
    """The file that a catalogue entry points at."""
    path = folder / f"{name}.script.json"
    path.write_bytes(msgspec.json.encode(script))
    return path


def load_spec(path: Path, *, model_id: str = "fake", slots: int = 16) -> LoadSpec:
    """Load this script with the scripted driver."""
    settings = EngineSettings(slots=slots)
    return LoadSpec(model_id=model_id, driver="scripted", path=str(path), settings=settings)
