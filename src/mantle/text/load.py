"""Which `ModelText` belongs to a driver? The only place that knows.

Invariant: faults come out as `LoadFailed`, and no message names a path.
"""

from pathlib import Path

from mantle.core.errors import EngineFailed, LoadFailed
from mantle.text.port import ModelText


def load_model_text(driver: str, path: Path) -> ModelText:
    """Read tokeniser and chat template of the model at `path`. Slow: off the event loop."""
    if driver == "llama_cpp":
        from mantle.text.gguf_text import GgufText

        try:
            return GgufText(path)
        except EngineFailed as error:
            raise LoadFailed("the model's chat template does not compile") from error
    if driver == "scripted":
        from mantle.text.scripted_text import ScriptedText

        try:
            return ScriptedText.read(path)
        except (OSError, ValueError) as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
            raise LoadFailed(
                f"the model's script file {reason}", hint="check the model's catalogue entry"
            ) from error
    raise LoadFailed(f"no tokeniser is known for the driver {driver!r}")
