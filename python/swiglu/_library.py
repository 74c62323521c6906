"""libswiglu by ctypes: the structs and functions of swiglu.h, and nothing else. See there for what they mean.

CDLL gives the GIL away during every call.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
import weakref
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p

from ._errors import error_of

DTYPES = ("f32", "bf16", "f16", "f64")
COMPUTES = ("automatic", "f32", "bf16")
STORAGES = ("automatic", "plain", "compact")
ISAS = ("automatic", "scalar", "avx2", "avx512", "avx512bf16")


class View(ctypes.Structure):
    """swiglu_view and swiglu_mutable_view."""

    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("rows", c_int64), ("cols", c_int64), ("stride", c_int64)]


class OpenOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", c_int64), ("eps", c_double), ("hidden", c_int64), ("map", c_int32),
                ("collect_problems", c_int32)]


class CheckpointInfo(ctypes.Structure):
    _fields_ = [("struct_bytes", c_int64), ("format", c_char_p), ("family", c_char_p), ("layers", c_int64),
                ("dim", c_int64), ("hidden", c_int64), ("eps", c_double), ("experts", c_int64), ("shards", c_int64),
                ("size_bytes", c_int64), ("bytes_read", c_int64), ("tensors", c_int64), ("notes", c_int64),
                ("problems", c_int64)]


class TensorInfo(ctypes.Structure):
    _fields_ = [("struct_bytes", c_int64), ("name", c_char_p), ("role", c_char_p), ("dtype", c_char_p),
                ("layer", c_int64), ("expert", c_int64), ("shape", POINTER(c_int64)), ("dimensions", c_int64)]


Progress = ctypes.CFUNCTYPE(None, c_void_p, c_int64, c_int64)


class LayerOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", c_int64), ("compute", c_int32), ("storage", c_int32), ("isa", c_int32),
                ("reserved", c_int32), ("pool", c_void_p), ("runner", c_void_p), ("progress", Progress),
                ("progress_ctx", c_void_p)]


class Weights(ctypes.Structure):
    _fields_ = [("struct_bytes", c_int64), ("gate", View), ("up", View), ("down", View), ("norm", View),
                ("eps", c_double)]


class LayerInfo(ctypes.Structure):
    _fields_ = [("struct_bytes", c_int64), ("dim", c_int64), ("hidden", c_int64), ("eps", c_double),
                ("compute", c_int32), ("isa", c_int32), ("gate_up_storage", c_char_p), ("down_storage", c_char_p),
                ("packed_bytes", c_int64), ("bits_per_weight", c_double), ("has_norm", c_int32), ("reserved", c_int32)]


# name: (what it returns, its arguments); c_int32 that `check` looks at is a status.
_FUNCTIONS = {
    "swiglu_version": (c_char_p,),
    "swiglu_status_name": (c_char_p, c_int32),
    "swiglu_last_error": (c_char_p,),
    "swiglu_pool_create": (c_int32, c_int32, POINTER(c_void_p)),
    "swiglu_pool_free": (None, c_void_p),
    "swiglu_pool_threads": (c_int32, c_void_p),
    "swiglu_checkpoint_open": (c_int32, c_char_p, POINTER(OpenOptions), POINTER(c_void_p)),
    "swiglu_checkpoint_free": (None, c_void_p),
    "swiglu_checkpoint_get_info": (c_int32, c_void_p, POINTER(CheckpointInfo)),
    "swiglu_checkpoint_layer_number": (c_int64, c_void_p, c_int64),
    "swiglu_checkpoint_note": (c_char_p, c_void_p, c_int64),
    "swiglu_checkpoint_problem": (c_char_p, c_void_p, c_int64),
    "swiglu_checkpoint_tensor": (c_int32, c_void_p, c_int64, POINTER(TensorInfo)),
    "swiglu_layer_load": (c_int32, c_void_p, c_int64, c_int64, POINTER(LayerOptions), POINTER(c_void_p)),
    "swiglu_layer_create": (c_int32, POINTER(Weights), POINTER(LayerOptions), POINTER(c_void_p)),
    "swiglu_layer_free": (None, c_void_p),
    "swiglu_layer_get_info": (c_int32, c_void_p, POINTER(LayerInfo)),
    "swiglu_layer_block": (c_int32, c_void_p, POINTER(View), POINTER(View), c_void_p, c_int64),
    "swiglu_layer_forward": (c_int32, c_void_p, POINTER(View), POINTER(View), c_void_p, c_int64),
    "swiglu_isa_available": (c_int32, c_int32),
    "swiglu_ffn_width": (c_int32, c_int64, c_int64, c_double, POINTER(c_int64)),
}


def _load() -> ctypes.CDLL:
    # SWIGLU_LIBRARY: another build of the library, for those who work on it.
    path = os.environ.get("SWIGLU_LIBRARY") or pathlib.Path(__file__).parent / "lib" / "libswiglu.so.0"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"libswiglu cannot be loaded ({error}): install the package with pip, which builds it") from None
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()


class Owned:
    """What holds a handle of the library, and gives it back when it is collected. Immutable: a copy is the thing itself."""

    def _own(self, handle: c_void_p, free) -> None:
        self._handle = handle
        # Not at the interpreter's end: daemon threads may still be in a call, and the process gives all back anyway.
        weakref.finalize(self, free, handle).atexit = False

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} cannot be pickled: make it anew where it is needed")


def check(status: int) -> None:
    """Raises what the library said if `status` is not OK. In the thread that made the call."""
    if status != 0:
        raise error_of(lib.swiglu_status_name(status).decode(), lib.swiglu_last_error().decode(errors="replace"))


def sized(kind, **values):
    """A struct that begins with its size."""
    return kind(struct_bytes=ctypes.sizeof(kind), **values)


def index_of(what: str, word: str, words: tuple[str, ...]) -> int:
    if word not in words:
        raise error_of("usage", f"{what}: expected {', '.join(words)}, found {word!r}")
    return words.index(word)


def whole(what: str, value, least: int = -(2**63)) -> int:
    """An integer that C's int64_t holds."""
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"{what}: expected an integer, found {type(value).__name__}") from None
    if not least <= number < 2**63:
        raise error_of("usage", f"{what}: expected an integer from {least} to {2**63 - 1}, found {number}")
    return number


def version() -> str:
    return lib.swiglu_version().decode()


def available_isas() -> list[str]:
    """The instruction sets that this machine can run, slowest first. All give the same bits."""
    return [name for i, name in enumerate(ISAS) if i > 0 and lib.swiglu_isa_available(i)]


def ffn_width(dim: int, multiple_of: int = 256, multiplier: float | None = None) -> int:
    """The hidden width that Meta's recipe gives, with `ffn_dim_multiplier` if there is one."""
    width = c_int64()
    if multiplier == 0:
        raise error_of("usage", "multiplier: expected a positive number or None, found 0")
    check(lib.swiglu_ffn_width(whole("dim", dim), whole("multiple_of", multiple_of), multiplier or 0, ctypes.byref(width)))
    return width.value
