"""The demo model's tokeniser, loaded once for this folder."""

from pathlib import Path

import pytest

from mantle.text.gguf_text import GgufText


@pytest.fixture(scope="session")
def demo_text(demo_weights: Path) -> GgufText:
    return GgufText(demo_weights)
