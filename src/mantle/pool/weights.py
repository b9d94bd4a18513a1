"""What is in a weights file? Facts for the catalogue, and smaller copies of it.

Invariant: a fact is read or computed from the file itself; a copy appears under its name only when
it is complete.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mantle.core.errors import EngineFailed, LoadFailed
from mantle.core.script import read_script
from mantle.pool.catalogue import CatalogueError, model_id
from mantle.pool.port import CatalogueEntry
from mantle.text.chat_template import ChatTemplate
from mantle.text.llama_library import VocabularyFile, llama_cpp

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); the last call has both equal."""

SCRIPT_SUFFIX: Final = ".script.json"
QUANTIZATIONS: Final = ("q4_0", "q8_0")
_BITS_PER_WEIGHT: Final = {"q4_0": 4.5, "q8_0": 8.5}  # a scale of 16 bits a block of 32
_HASH_BLOCK_BYTES = 4 * 1024 * 1024
_KV_BYTES_A_VALUE = 2  # the KV cache holds 16-bit floats
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class WeightsFacts:
    """What the catalogue keeps about a file. Digests are sha256, in hex."""

    driver: str
    digest: str
    size_bytes: int
    window_tokens: int
    architecture: str = ""
    quantization: str = ""
    parameters_count: int = 0
    template_digest: str = ""
    kv_bytes_per_token: int = 0


def read_weights(path: Path, *, progress: Progress | None = None) -> WeightsFacts:
    """Read the facts of a GGUF file or a script. Raises `CatalogueError`, which names the file."""
    if not path.is_file():
        raise CatalogueError(
            f"{path}: is not a file" if path.exists() else f"{path}: there is no such file",
            hint="give the path of a .gguf file",
        )
    read_facts = _script_facts if path.name.endswith(SCRIPT_SUFFIX) else _gguf_facts
    try:
        read_facts(path, "")  # a file of the wrong kind is refused before it is hashed
        return read_facts(path, file_digest(path, progress=progress))
    except OSError as error:
        reason = (error.strerror or "unknown fault").lower()
        raise CatalogueError(f"{path}: cannot be read: {reason}") from error


def entry_for(
    path: Path,
    facts: WeightsFacts,
    *,
    name: str,
    created_s: int,
    aliases: Sequence[str] = (),
) -> CatalogueEntry:
    """A catalogue entry for weights that stay where they are."""
    return CatalogueEntry(
        id=model_id(name),
        driver=facts.driver,
        path=str(path.absolute()),
        digest=facts.digest,
        size_bytes=facts.size_bytes,
        window_tokens=facts.window_tokens,
        created_s=created_s,
        display_name=name,
        quantization=facts.quantization,
        parameters_count=facts.parameters_count,
        template_digest=facts.template_digest,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        aliases=tuple(aliases),
    )


def file_digest(path: Path, *, progress: Progress | None = None) -> str:
    """sha256 of a file, in hex."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(done, max(done, total))
    return digest.hexdigest()


def quantize(path: Path, out: Path, kind: str, *, progress: Progress | None = None) -> None:
    """Write a copy of a GGUF file in another quantisation. Raises `CatalogueError`."""
    library = llama_cpp()
    params = library.llama_model_quantize_default_params()
    params.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    params.nthread = os.cpu_count() or 1
    params.allow_requantize = True
    expected_bytes = int(_parameters_count(path) * _BITS_PER_WEIGHT[kind] / 8)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(out.name + ".new")
    results: list[int] = []
    worker = threading.Thread(
        target=lambda: results.append(
            library.llama_model_quantize(os.fsencode(path), os.fsencode(draft), params)
        ),
        name="quantize",
        daemon=True,  # an interrupt leaves only the draft behind
    )
    worker.start()
    while worker.is_alive():
        worker.join(_POLL_S)
        if progress is not None and draft.exists():
            progress(min(draft.stat().st_size, expected_bytes), expected_bytes)
    if results != [0]:
        draft.unlink(missing_ok=True)
        raise CatalogueError(
            f"{path}: cannot be quantised to {kind}",
            hint=f"check the free space in {out.parent} and that the file is a complete GGUF",
        )
    draft.replace(out)
    if progress is not None:
        progress(expected_bytes, expected_bytes)


def _script_facts(path: Path, digest: str) -> WeightsFacts:
    try:
        script = read_script(path)
    except ValueError as error:
        raise CatalogueError(f"{path}: is not a script: {error}") from error
    return WeightsFacts(
        driver="scripted",
        digest=digest,
        size_bytes=path.stat().st_size,
        window_tokens=script.window_tokens,
        architecture="scripted",
        kv_bytes_per_token=script.kv_bytes_per_token,
    )


def _gguf_facts(path: Path, digest: str) -> WeightsFacts:
    with _open_gguf(path) as file:
        architecture = file.metadata("general.architecture") or ""
        template = file.chat_template()
        window_tokens = _number(file, f"{architecture}.context_length")
        if window_tokens < 1:
            raise CatalogueError(
                f"{path}: does not say how long a context its model has",
                hint=f"the key {architecture}.context_length is missing; convert the model again",
            )
        if template is not None:
            _check_template(path, template)
        file_type = file.metadata("general.file_type")
        return WeightsFacts(
            driver="llama_cpp",
            digest=digest,
            size_bytes=path.stat().st_size,
            window_tokens=window_tokens,
            architecture=architecture,
            quantization=file.quantization_name(int(file_type)) if file_type else "",
            parameters_count=file.parameters_count,
            template_digest=hashlib.sha256(template.encode()).hexdigest() if template else "",
            kv_bytes_per_token=_kv_bytes_per_token(file, architecture),
        )


def _check_template(path: Path, template: str) -> None:
    try:
        ChatTemplate(template)
    except EngineFailed as error:
        raise CatalogueError(
            f"{path}: its chat template does not compile", hint="convert the model again"
        ) from error


def _kv_bytes_per_token(file: VocabularyFile, architecture: str) -> int:
    """Keys and values of all layers for one token; 0 when the file does not say."""
    heads = _number(file, f"{architecture}.attention.head_count")
    if not heads:
        return 0
    kv_heads = _number(file, f"{architecture}.attention.head_count_kv") or heads
    head_size = _number(file, f"{architecture}.embedding_length") // heads
    keys = _number(file, f"{architecture}.attention.key_length") or head_size
    values = _number(file, f"{architecture}.attention.value_length") or head_size
    layers = _number(file, f"{architecture}.block_count")
    return layers * kv_heads * (keys + values) * _KV_BYTES_A_VALUE


def _number(file: VocabularyFile, key: str) -> int:
    text = file.metadata(key)
    return int(text) if text is not None and text.isdigit() else 0


def _parameters_count(path: Path) -> int:
    with _open_gguf(path) as file:
        return file.parameters_count


def _open_gguf(path: Path) -> VocabularyFile:
    try:
        return VocabularyFile(path)
    except LoadFailed as error:
        with path.open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        if not is_gguf:
            raise CatalogueError(
                f"{path}: is not a GGUF file", hint="give a .gguf file, or convert the model to one"
            ) from error
        raise CatalogueError(
            f"{path}: is damaged, or its model is of a kind that llama.cpp does not know",
            hint="compare its size and digest with the source, and fetch it again",
        ) from error
