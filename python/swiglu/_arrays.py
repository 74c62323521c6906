"""Arrays of other people, as pointers, shapes and strides, without a copy: NumPy, torch, and whatever speaks DLPack.

Knows neither layers nor the library, but for the numbers of its element types.
"""
from __future__ import annotations

import ctypes
import itertools
import math
import sys
import typing

import numpy as np

from ._errors import error_of
from ._library import DTYPES, View

SIZES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8}


class Array(typing.NamedTuple):
    """Elements at `pointer`; `strides` count elements. `owner` keeps the memory alive."""

    what: str
    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writable: bool
    owner: typing.Any

    def bounds(self) -> tuple[int, int]:
        """The first byte and the one after the last."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides)]
        size = SIZES[self.dtype]
        return (self.pointer + size * sum(r for r in reach if r < 0),
                self.pointer + size * (1 + sum(r for r in reach if r > 0)))


def is_torch(value: typing.Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def array_of(what: str, value: typing.Any) -> Array:
    """`value`, whatever it is; `what` names it in errors. Raises TypeError for what is no array."""
    if is_torch(value):
        return _torch(what, value)
    if isinstance(value, np.ndarray):
        return _numpy(what, value)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _dlpack(what, value)
    raise TypeError(f"{what}: expected a NumPy array, a torch tensor or an object with DLPack, "
                    f"found {type(value).__name__}")


def _refuse(what: str, expected: str, found: str) -> typing.NoReturn:
    raise error_of("usage", f"{what}: expected {expected}, found {found}")


def _strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Those that are walked along; 0 for an axis of one element, whose stride may be anything, and without elements."""
    return tuple(s if n > 1 and 0 not in shape else 0 for n, s in zip(shape, strides))


def _numpy(what: str, value: np.ndarray) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        _refuse(what, "an array without a mask (array.filled(0), say)", "a masked array")
    kind = value.dtype
    names = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
    # bf16 is ml_dtypes' type, or two bytes without a type, as `swiglu run` writes it.
    dtype = "bf16" if kind == np.dtype("V2") and kind.names is None else names.get(kind.name)
    if dtype is None:
        _refuse(what, "elements of type float32, bfloat16, float16 or float64", str(kind))
    if not kind.isnative:
        _refuse(what, "elements in this machine's byte order (array.astype(array.dtype.newbyteorder('=')))", str(kind))
    strides = _strides(value.shape, value.strides)
    if any(stride % kind.itemsize for stride in strides):
        _refuse(what, "strides of whole elements (numpy.ascontiguousarray)", f"strides of {value.strides} bytes")
    strides = tuple(stride // kind.itemsize for stride in strides)
    return Array(what, value.ctypes.data, dtype, value.shape, strides, value.flags.writeable, value)


def _torch(what: str, value: typing.Any) -> Array:
    torch = sys.modules["torch"]
    if value.device.type != "cpu":
        _refuse(what, "a tensor on the CPU (tensor.cpu())", f"one on {value.device}")
    if value.layout != torch.strided or value.is_nested:
        _refuse(what, "a dense tensor (tensor.to_dense())",
                "a nested one" if value.is_nested else f"one with layout {value.layout}")
    names = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
    if value.dtype not in names:
        _refuse(what, "elements of type float32, bfloat16, float16 or float64", str(value.dtype))
    if value.is_neg():
        _refuse(what, "a tensor with its values in memory (tensor.resolve_neg())", "one that is negated when read")
    if (value.requires_grad and torch.is_grad_enabled()
            or torch.autograd.forward_ad.unpack_dual(value).tangent is not None):
        _refuse(what, "a tensor that needs no gradient, for swiglu computes none (torch.no_grad(), or tensor.detach())",
                "one that requires a gradient")
    if torch.jit.is_tracing():
        _refuse(what, "a call outside of torch.jit.trace, which would not see it", "one inside")
    try:
        pointer = value.data_ptr()
    except RuntimeError:  # torch.compile's, vmap's and others that stand for a tensor
        pointer = None
    if pointer is None or (pointer == 0 and value.numel() > 0):
        _refuse(what, "a tensor with memory of its own", f"a {type(value).__name__} without any")
    shape = tuple(value.shape)
    return Array(what, pointer, names[value.dtype], shape, _strides(shape, value.stride()), True, value)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _DLManagedVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_valid.restype, _capsule_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def _dlpack(what: str, value: typing.Any) -> Array:
    device, index = value.__dlpack_device__()
    if device != 1:
        kinds = {2: "CUDA", 3: "CUDA host", 8: "Metal", 10: "ROCm"}
        _refuse(what, "an array on the CPU", f"one on {kinds.get(int(device), 'DLPack')} device {int(device)}:{index}")
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:  # from before version 1 of the protocol
        capsule = value.__dlpack__()
    # The capsule is not taken over: it frees what it holds when it goes, after the call.
    writable = True
    if _capsule_valid(capsule, b"dltensor_versioned"):
        managed = _DLManagedVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            _refuse(what, "version 1 of DLPack", f"version {managed.major}")
        tensor, writable = managed.tensor, not managed.flags & 3  # read-only, or a copy that nobody would see written
    elif _capsule_valid(capsule, b"dltensor"):  # which cannot say read-only, as JAX's arrays all are
        writable = not isinstance(value, getattr(sys.modules.get("jax"), "Array", ()))
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        _refuse(what, "a capsule of DLPack", repr(capsule))
    dtype = {(2, 32): "f32", (2, 64): "f64", (2, 16): "f16", (4, 16): "bf16"}.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        _refuse(what, "elements of type float32, bfloat16, float16 or float64",
                f"DLPack's type {tensor.code} of {tensor.bits} bits, {tensor.lanes} at once")
    if not 0 <= tensor.ndim <= 64 or (tensor.ndim > 0 and not tensor.shape):
        _refuse(what, "a capsule of DLPack with a shape", f"one of {tensor.ndim} axes")
    shape = tuple(tensor.shape[:tensor.ndim])
    if any(n < 0 for n in shape):
        _refuse(what, "a capsule of DLPack with a shape", f"{shape}")
    if tensor.strides:
        strides = tuple(tensor.strides[:tensor.ndim])
    else:
        strides = tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))
    pointer = tensor.data + tensor.byte_offset if tensor.data else 0
    return Array(what, pointer, dtype, shape, _strides(shape, strides), writable, (value, capsule))


def written(value: typing.Any) -> None:
    """Tells torch, whose gradients may need what was there before."""
    if is_torch(value) and not value.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(value)


def last_axis(array: Array) -> Array:
    """Refuses what has no axis of neighbouring elements at its end."""
    if not array.shape:
        _refuse(array.what, "at least one axis", "a single number")
    if array.shape[-1] > 1 and array.strides[-1] != 1 and 0 not in array.shape:
        _refuse(array.what, "elements of the last axis side by side (numpy.ascontiguousarray, tensor.contiguous())",
                f"a stride of {array.strides[-1]} elements")
    return array


def matrix(array: Array) -> View:
    """A weight matrix, as the library takes it. The caller keeps `array` alive, for what DLPack gave may be its own copy."""
    if len(array.shape) != 2:
        raise error_of("shape", f"{array.what}: expected a matrix, found shape {array.shape}")
    last_axis(array)
    rows, cols = array.shape
    stride = array.strides[0] if rows > 1 else cols
    if stride < cols:
        _refuse(array.what, "rows that follow each other (numpy.ascontiguousarray, tensor.contiguous())",
                f"a stride of {stride} elements between rows of {cols}")
    return View(array.pointer, DTYPES.index(array.dtype), rows, cols, stride)


def overlap(a: Array, b: Array) -> bool:
    """Whether they meet anywhere from first byte to last, unless both are the same. The library looks no closer, too."""
    same = (a.pointer, a.dtype, a.strides) == (b.pointer, b.dtype, b.strides)
    (a0, a1), (b0, b1) = a.bounds(), b.bounds()
    return not same and a0 < b1 and b0 < a1


def repeats(array: Array) -> bool:
    """Whether elements may lie in one another's place."""
    if 0 in array.shape:
        return False
    reach = 0
    for stride, n in sorted((abs(s), n) for s, n in zip(array.strides, array.shape) if n > 1):
        if stride <= reach:
            return True
        reach += (n - 1) * stride
    return False


def matrices(source: Array, target: Array) -> typing.Iterator[tuple[View, View]]:
    """Two arrays of one shape [..., cols] as pairs of matrices, as few as the strides allow; none if they are empty."""
    if 0 in source.shape:
        return
    cols = source.shape[-1]
    both = (source, target)
    # Leading axes of one element do not matter, whatever their stride.
    axes = [i for i, n in enumerate(source.shape[:-1]) if n > 1]
    rows, strides = 1, [cols, cols]
    if axes and all(a.strides[axes[-1]] >= cols for a in both):
        last = axes.pop()
        rows, strides = source.shape[last], [a.strides[last] for a in both]
        while axes and all(a.strides[axes[-1]] == s * rows for a, s in zip(both, strides)):
            rows *= source.shape[axes.pop()]
    for index in itertools.product(*(range(source.shape[i]) for i in axes)):
        yield tuple(
            View(a.pointer + SIZES[a.dtype] * sum(k * a.strides[i] for k, i in zip(index, axes)),
                 DTYPES.index(a.dtype), rows, cols, stride) for a, stride in zip(both, strides))
