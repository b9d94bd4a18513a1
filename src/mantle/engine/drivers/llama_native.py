"""How do we talk to llama.cpp? A typed shell around its C API: one loaded model and its context.

Invariant: every pointer and buffer given to C lives as long as the context, `close` frees all of
it once, and nothing here knows of requests or sampling. Slots are llama.cpp sequence ids.
"""

import ctypes
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import llama_cpp
import numpy as np
from llguidance import LLTokenizer
from llguidance.llamacpp import lltokenizer_from_vocab
from numpy.typing import NDArray

from mantle.core.errors import LoadFailed
from mantle.engine.drivers.llama_memory import plan_kv
from mantle.engine.port import EngineSettings

DECODE_OK: Final = 0
DECODE_NO_KV_ROOM: Final = 1
DECODE_INTERRUPTED: Final = 2

_F16_BYTES: Final = 2
_UBATCH_TOKENS: Final = 512
"""Tokens computed at once inside one decode. Beyond: compute buffers grow, speed does not."""
_META_VALUE_BYTES_MAX: Final = 256


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _drop_log_line(level: int, text: bytes, user: Any) -> None:
    """llama.cpp's own log may name paths: none of it leaves."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the weights file says of the model."""

    size_bytes: int
    vocab_size: int
    window_tokens: int
    kv_bytes_per_token: int
    end_ids: NDArray[np.int64]
    can_drop_tail: bool  # False: recurrent or hybrid memory, no prefix reuse


class LlamaContext:
    """One model with one KV memory. Single-threaded; `close` is idempotent."""

    def __init__(self, path: str, settings: EngineSettings, *, kv_bytes_max: int) -> None:
        """KV takes at most `kv_bytes_max`. Raises `LoadFailed`, holding nothing."""
        llama_cpp.llama_log_set(_drop_log_line, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model: Any = _load_model(path)
        self._context: Any = None
        try:
            self._vocab = llama_cpp.llama_model_get_vocab(self._model)
            self.facts = _read_facts(self._model, self._vocab)
            self.plan = plan_kv(
                settings,
                window_trained_tokens=self.facts.window_tokens,
                bytes_per_token=self.facts.kv_bytes_per_token,
                budget_bytes=kv_bytes_max,
            )
            self._context = self._make_context(settings)
            self.batch_tokens = int(llama_cpp.llama_n_batch(self._context))  # it may be lowered
        except BaseException:
            self.close()
            raise
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._set_interrupt_flag()
        self._allocate_batch()

    def _make_context(self, settings: EngineSettings) -> Any:
        plan = self.plan
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = plan.cells
        params.n_batch = max(settings.batch_tokens, plan.slots)
        params.n_ubatch = min(params.n_batch, _UBATCH_TOKENS)
        params.n_seq_max = plan.slots
        params.n_threads = params.n_threads_batch = settings.threads or _core_count()
        params.kv_unified = not plan.streams
        params.swa_full = True  # sliding-window layers keep all cells, so that tails can be dropped
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if settings.flash_attention
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.no_perf = True
        context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            raise LoadFailed(
                "the engine could not allocate memory for this model",
                hint="lower engine.slots or engine.window_tokens",
            )
        return context

    def _allocate_batch(self) -> None:
        """Arrays that one `llama_batch` points into for its whole life."""
        count = self.batch_tokens
        self.tokens = np.zeros(count, np.int32)
        self.positions = np.zeros(count, np.int32)
        self.slots = np.zeros(count, np.int32)
        self.wants_logits = np.zeros(count, np.int8)
        self._one_each = np.ones(count, np.int32)
        cells = self.slots.ctypes.data + 4 * np.arange(count, dtype=np.uintp)
        self._slot_pointers = cells
        batch = llama_cpp.llama_batch()
        batch.token = self.tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.pos = self.positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.n_seq_id = self._one_each.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = cells.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        batch.logits = self.wants_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._batch = batch

    def _set_interrupt_flag(self) -> None:
        """Let llama.cpp look at one byte of ours after each operation of a step.

        It asks by calling a C function with a pointer. The function is the C library's `strlen`,
        the pointer leads to two bytes: the answer is 0 (go on) while the first is zero, else 1
        (stop). So the engine's threads never wait for the interpreter lock.
        """
        self._flag = ctypes.create_string_buffer(2)
        ask = ctypes.cast(ctypes.CDLL(None).strlen, llama_cpp.ggml_abort_callback)
        self._keep_alive = ask
        address = ctypes.cast(self._flag, ctypes.c_void_p)
        llama_cpp.llama_set_abort_callback(self._context, ask, address)

    def interrupt(self) -> None:
        """End the decode in progress soon, from another thread; its tokens are not in the KV."""
        self._flag[0] = b"\1"

    def warm_up(self) -> None:
        """Touch all weights once, so that the first request does not pay for it."""
        self.tokens[0] = self.positions[0] = self.slots[0] = 0
        self.wants_logits[0] = 1
        code = self.decode(1)
        self.drop_tail(0, 0)
        if code != DECODE_OK:
            self.close()
            raise LoadFailed("the engine could not compute with these weights")

    def decode(self, token_count: int) -> int:
        """Run the first `token_count` entries of the batch arrays; llama.cpp's return code."""
        assert 0 < token_count <= self.batch_tokens
        self._batch.n_tokens = token_count
        self._flag[0] = b"\0"
        return int(llama_cpp.llama_decode(self._context, self._batch))

    def logits(self, row_count: int) -> NDArray[np.float32]:
        """Rows of the entries that wanted logits, in batch order; valid until the next decode."""
        pointer = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(row_count, self.facts.vocab_size))

    def drop_tail(self, slot: int, keep_tokens: int) -> bool:
        """Forget what `slot` holds from `keep_tokens` on; False: it cannot be cut there."""
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, slot, keep_tokens, -1))

    def share(self, source: int, target: int, token_count: int) -> None:
        """Let `target` use the first cells of `source` (unified layout: no bytes move)."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, token_count)

    def held_tokens(self, slot: int) -> int:
        """How many positions `slot` holds."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, slot)) + 1

    def save(self, slot: int) -> bytes | None:
        """The KV of `slot` as bytes; None when the engine cannot give it."""
        size = int(llama_cpp.llama_state_seq_get_size(self._context, slot))
        if size == 0:
            return None
        buffer = bytearray(size)
        view = (ctypes.c_uint8 * size).from_buffer(buffer)
        written = int(llama_cpp.llama_state_seq_get_data(self._context, view, size, slot))
        return bytes(buffer) if written == size else None

    def restore(self, slot: int, kv: bytes) -> bool:
        """Put saved KV into `slot`; False: it does not fit, and the slot is empty now."""
        source = ctypes.cast(ctypes.c_char_p(kv), ctypes.POINTER(ctypes.c_uint8))
        read = llama_cpp.llama_state_seq_set_data(self._context, source, len(kv), slot)
        if int(read) == len(kv):
            return True
        self.drop_tail(slot, 0)
        return False

    def copy(self, source: int, target: int) -> bool:
        """Copy all of `source` into `target` (streams layout: bytes move, whole slots only).

        `llama_memory_seq_cp` would copy the whole stream, used or not, and only at the next
        decode; saving and restoring moves just what is held.
        """
        kv = self.save(source)
        return kv is not None and self.restore(target, kv)

    def swap(self, one: int, other: int) -> bool:
        """Exchange all that two slots hold; False: the engine cannot, and both are as they were."""
        held = {one: self._save_held(one), other: self._save_held(other)}
        if None in held.values():
            return False
        for slot, kv in ((one, held[other]), (other, held[one])):
            self.drop_tail(slot, 0)
            fits = not kv or self.restore(slot, kv)
            assert fits, "KV saved from this context must fit back into it"
        return True

    def _save_held(self, slot: int) -> bytes | None:
        return self.save(slot) if self.held_tokens(slot) else b""

    def grammar_tokenizer(self) -> LLTokenizer:
        """The vocabulary as llguidance wants it; takes a third of a second."""
        ends = self.facts.end_ids.tolist()
        with warnings.catch_warnings():  # it calls llama.cpp by older names
            warnings.simplefilter("ignore", DeprecationWarning)
            return lltokenizer_from_vocab(self._vocab, eos_token=ends)

    def close(self) -> None:
        """Free everything; later calls do nothing."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None
        if self._model:
            llama_cpp.llama_model_free(self._model)
            self._model = None


def _core_count() -> int:
    return len(os.sched_getaffinity(0))


def _load_model(path: str) -> Any:
    if not Path(path).is_file():
        raise LoadFailed("the weights file is missing")
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise LoadFailed("the weights file is corrupt or of an unknown kind")
    return model


def _read_facts(model: Any, vocab: Any) -> ModelFacts:
    vocab_size = int(llama_cpp.llama_vocab_n_tokens(vocab))
    ends = [i for i in range(vocab_size) if llama_cpp.llama_vocab_is_eog(vocab, i)]
    recurrent = llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
    return ModelFacts(
        size_bytes=int(llama_cpp.llama_model_size(model)),
        vocab_size=vocab_size,
        window_tokens=int(llama_cpp.llama_model_n_ctx_train(model)),
        kv_bytes_per_token=_kv_bytes_per_token(model),
        end_ids=np.array(ends, np.int64),
        can_drop_tail=not recurrent,
    )


def _kv_bytes_per_token(model: Any) -> int:
    """Keys and values of all layers in float16; head sizes from the metadata where it has them."""
    architecture = _meta(model, "general.architecture")
    head_count = int(llama_cpp.llama_model_n_head(model))
    even_size = int(llama_cpp.llama_model_n_embd(model)) // max(1, head_count)
    key_size = int(_meta(model, f"{architecture}.attention.key_length") or even_size)
    value_size = int(_meta(model, f"{architecture}.attention.value_length") or even_size)
    heads_kv = int(llama_cpp.llama_model_n_head_kv(model))
    layers = int(llama_cpp.llama_model_n_layer(model))
    return layers * heads_kv * (key_size + value_size) * _F16_BYTES


def _meta(model: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(_META_VALUE_BYTES_MAX)
    size = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if size >= 0 else ""
