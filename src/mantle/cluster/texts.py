"""Which tokeniser belongs to a model? Loaded once, on first use, off the event loop."""

import asyncio
from concurrent.futures import Executor
from pathlib import Path

from mantle.core.errors import LoadFailed
from mantle.pool.port import CatalogueEntry
from mantle.text.load import load_model_text
from mantle.text.port import ModelText


class Texts:
    """Implements the gateway's `TextProvider`. Keyed by digest, so changed weights load anew."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loading: dict[str, asyncio.Future[ModelText]] = {}

    async def get(self, entry: CatalogueEntry) -> ModelText:
        """Raises `LoadFailed`; the next call tries again."""
        loading = self._loading.get(entry.digest)
        if loading is None:
            loop = asyncio.get_running_loop()
            loading = loop.run_in_executor(
                self._executor, load_model_text, entry.driver, Path(entry.path)
            )
            self._loading[entry.digest] = loading
        elif loading.done() and loading.exception() is None:
            return loading.result()
        try:
            return await asyncio.shield(loading)
        except LoadFailed:
            if self._loading.get(entry.digest) is loading:
                del self._loading[entry.digest]
            raise
