"""Which driver runs this model? The registry; an engine is imported only when asked for."""

from mantle.core.errors import LoadFailed
from mantle.engine.port import Driver


def make_driver(name: str) -> Driver:
    """A fresh driver of this name. Raises `LoadFailed` when there is none or it cannot start."""
    try:
        if name == "scripted":
            from mantle.engine.drivers.scripted import ScriptedDriver

            return ScriptedDriver()
        if name == "llama_cpp":
            from mantle.engine.drivers.llama_cpp import LlamaCppDriver

            return LlamaCppDriver()
    except ImportError as fault:
        raise LoadFailed(
            f"the engine of driver {name!r} is not installed", hint="install its extra"
        ) from fault
    raise LoadFailed(f"there is no driver named {name!r}", hint="use llama_cpp or scripted")
