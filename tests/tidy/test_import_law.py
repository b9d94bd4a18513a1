"""Does every module obey design law 3? Also proves that each kind of breach is seen."""

import pytest

from tests.tidy import import_law
from tests.tidy.tree import python_files, text_of


def test_every_module_obeys_the_import_law():
    breaches = []
    for path in python_files("src/mantle"):
        dotted = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        is_package = dotted.endswith(".__init__")
        module = dotted.removesuffix(".__init__")
        breaches += import_law.breaches(module, text_of(path), is_package=is_package)
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("mantle.scheduler.dispatcher", "from mantle.gateway.server import Server"),
        ("mantle.scheduler.dispatcher", "from mantle.gateway import port"),
        ("mantle.gateway.server", "from mantle.scheduler.dispatcher import Dispatcher"),
        ("mantle.gateway.server", "import mantle.scheduler.dispatcher"),
        ("mantle.gateway.server", "from mantle.scheduler import dispatcher"),
        ("mantle.gateway.server", "def f():\n    from mantle.pool.pool import Pool"),
        ("mantle.gateway.server", "from ..scheduler.dispatcher import Dispatcher"),
        ("mantle.engine.port", "from mantle.training.port import Run"),
        ("mantle.text.tokenizer", "from mantle.observe.metrics import Metrics"),
        ("mantle.core.clock", "from mantle.text.port import ModelText"),
        ("mantle.novelty.thing", "from mantle.core.clock import Clock"),
    ],
)
def test_breach_is_seen(module, text):
    assert import_law.breaches(module, text)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("mantle.gateway.server", "from mantle.scheduler.port import Generation"),
        ("mantle.gateway.server", "from mantle.scheduler import port"),
        ("mantle.gateway.server", "from mantle.text.chat_template import render"),
        ("mantle.gateway.server", "from .sse import encode"),
        ("mantle.cluster.wiring", "from mantle.gateway.server import Server"),
        ("mantle.testing.scripted", "from mantle.engine.drivers.scripted import ScriptedDriver"),
        ("mantle.core.clock", "import time\nfrom typing import Final"),
        ("mantle.gateway.server", "from mantle import __version__"),
    ],
)
def test_lawful_import_is_allowed(module, text):
    assert not import_law.breaches(module, text)
