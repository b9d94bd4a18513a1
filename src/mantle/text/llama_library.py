"""How do we reach llama.cpp outside an engine? Vocabulary and metadata of a model file, no weights.

Invariant: llama.cpp's own log stays silent, and importing this module does not load the library.
"""

import ctypes
import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from mantle.core.errors import LoadFailed

_keep_alive: list[object] = []  # ctypes callbacks must outlive the library's use of them


@functools.cache
def llama_cpp() -> ModuleType:
    """The low-level API, silenced. Raises `LoadFailed` when the package is missing."""
    try:
        from llama_cpp import llama_cpp as library
    except ImportError as error:
        raise LoadFailed(
            "llama-cpp-python is not installed", hint="install mantle with its `llama` extra"
        ) from error
    callback = library.llama_log_callback(_drop_log_line)
    _keep_alive.append(callback)
    library.llama_log_set(callback, ctypes.c_void_p(0))
    library.llama_backend_init()
    return library  # type: ignore[no-any-return]


def _drop_log_line(_level: int, _text: bytes, _user_data: object) -> None:
    return None


class VocabularyFile:
    """A model file opened for its vocabulary and metadata only. Close it, or use `with`."""

    def __init__(self, path: Path) -> None:
        self.library: Any = llama_cpp()
        params = self.library.llama_model_default_params()
        params.vocab_only = True
        self._model = self.library.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise LoadFailed(
                "the weights file is missing, or is not a GGUF file that this engine can read",
                hint="check the file, then `mantle models remove` and `mantle models add` it again",
            )
        self.vocabulary: Any = self.library.llama_model_get_vocab(self._model)

    def __enter__(self) -> "VocabularyFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model; `vocabulary` is invalid from then on."""
        if self._model:
            self.library.llama_model_free(self._model)
            self._model = None

    @property
    def parameters_count(self) -> int:
        return int(self.library.llama_model_n_params(self._model))

    def quantization_name(self, file_type: int) -> str:
        """`general.file_type` as people write it, such as Q4_0."""
        name: bytes = self.library.llama_ftype_name(file_type)
        return "" if b"guessed" in name else name.decode()

    def chat_template(self) -> str | None:
        raw = self.library.llama_model_chat_template(self._model, None)
        return raw.decode("utf-8", "replace") if raw else None

    def metadata(self, key: str) -> str | None:
        """The value of a GGUF key, as text."""
        buffer = ctypes.create_string_buffer(4096)
        length = self.library.llama_model_meta_val_str(
            self._model, key.encode(), buffer, len(buffer)
        )
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None
