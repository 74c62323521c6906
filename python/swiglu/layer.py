"""The packed sublayer and its two calls."""
from __future__ import annotations

import ctypes
import os
import typing

import numpy as np

from . import _arrays as arrays
from . import _library as c
from ._library import check, lib
from .checkpoint import Checkpoint
from .pool import ThreadPool, default_pool


class FeedForward(c.Owned):
    """One layer's feed-forward, packed: immutable, to be called from any number of threads at once.

    FeedForward(model, 0)                       layer 0 of a Checkpoint, or of a path to one
    FeedForward.from_weights(gate, up, down)    weights in memory

    expert: which of a mixture of experts.
    compute: "f32", "bf16", or "automatic": bf16 if gate, up and down are all bf16, else f32. Sums are fp32 in both.
    storage: of bf16 weights in memory: "plain", 16 bits each, or "compact", about 12, without loss; "automatic" takes
        the faster. isa: an instruction set, see available_isas(). Neither changes a bit of a result.
    pool: a ThreadPool; without one all layers share one with a thread for each CPU.
    progress: called with (bytes packed so far, bytes in all), from packing threads. What it raises is raised once
        packing is done.
    """

    def __init__(self, model: Checkpoint | str | os.PathLike[str], layer: int = 0, *, expert: int | None = None,
                 compute: str = "automatic", storage: str = "automatic", isa: str = "automatic",
                 pool: ThreadPool | None = None, progress: typing.Callable[[int, int], object] | None = None) -> None:
        if not isinstance(model, Checkpoint):
            model = Checkpoint(model)
        number, which = c.whole("layer", layer), -1 if expert is None else c.whole("expert", expert, 0)
        self._make(lambda options, out: lib.swiglu_layer_load(model._handle, number, which, options, out),
                   compute, storage, isa, pool, progress)

    @classmethod
    def from_weights(cls, gate: typing.Any, up: typing.Any, down: typing.Any, *, norm: typing.Any = None,
                     eps: float = 1e-5, compute: str = "automatic", storage: str = "automatic",
                     isa: str = "automatic", pool: ThreadPool | None = None,
                     progress: typing.Callable[[int, int], object] | None = None) -> FeedForward:
        """gate = W1 and up = W3: [hidden, dim]; down = W2: [dim, hidden]; norm: [dim], or None for forward() only.

        NumPy arrays, torch tensors or objects with DLPack, of types float32, bfloat16, float16 or float64, with any
        stride between rows. They are copied while packing and not needed afterwards.
        """
        held = [arrays.array_of(what, value) for what, value in (("gate", gate), ("up", up), ("down", down))]
        weights = c.sized(c.Weights, **{array.what: arrays.matrix(array) for array in held}, eps=eps)
        if norm is not None:
            vector = arrays.last_axis(arrays.array_of("norm", norm))
            if len(vector.shape) != 1:
                raise c.error_of("shape", f"norm: expected a vector, found shape {vector.shape}")
            size = vector.shape[0]
            if size != weights.gate.cols:
                raise c.error_of("shape", f"norm: expected {weights.gate.cols} elements, found {size}")
            weights.norm = c.View(vector.pointer, c.DTYPES.index(vector.dtype), 1, size, size)
        self = cls.__new__(cls)
        self._make(lambda options, out: lib.swiglu_layer_create(ctypes.byref(weights), options, out),
                   compute, storage, isa, pool, progress)
        return self

    def _make(self, make: typing.Callable[..., int], compute: str, storage: str, isa: str, pool: ThreadPool | None,
              progress: typing.Callable[[int, int], object] | None) -> None:
        if not isinstance(pool, (ThreadPool, type(None))):
            raise TypeError(f"pool: expected a swiglu.ThreadPool, found {type(pool).__name__}")
        failed: list[BaseException] = []

        def tell(_: object, done: int, total: int) -> None:
            try:
                if not failed:
                    progress(done, total)
            except BaseException as error:  # it cannot pass through the library
                failed.append(error)

        told = c.Progress() if progress is None else c.Progress(tell)
        options = c.sized(c.LayerOptions, compute=c.index_of("compute", compute, c.COMPUTES),
                          storage=c.index_of("storage", storage, c.STORAGES), isa=c.index_of("isa", isa, c.ISAS),
                          pool=(pool or default_pool())._handle, progress=told)
        handle = ctypes.c_void_p()
        check(make(ctypes.byref(options), ctypes.byref(handle)))
        self._own(handle, lib.swiglu_layer_free)
        if failed:
            raise failed[0]
        self._info = c.sized(c.LayerInfo)
        check(lib.swiglu_layer_get_info(handle, ctypes.byref(self._info)))

    @property
    def dim(self) -> int:
        return self._info.dim

    @property
    def hidden(self) -> int:
        return self._info.hidden

    @property
    def eps(self) -> float:
        return self._info.eps

    @property
    def has_norm(self) -> bool:
        """Without a norm there is forward() only."""
        return self._info.has_norm == 1

    @property
    def compute(self) -> str:
        return c.COMPUTES[self._info.compute]

    @property
    def isa(self) -> str:
        return c.ISAS[self._info.isa]

    @property
    def storage(self) -> tuple[str, str]:
        """Of gate and up together, and of down: "plain f32", "plain bf16", "plain f16" or "compact bf16"."""
        return self._info.gate_up_storage.decode(), self._info.down_storage.decode()

    @property
    def packed_bytes(self) -> int:
        """Of weights in memory."""
        return self._info.packed_bytes

    @property
    def bits_per_weight(self) -> float:
        return self._info.bits_per_weight

    def block(self, h: typing.Any, out: typing.Any = None) -> typing.Any:
        """h + FFN(norm(h)): norm, feed-forward and residual of tokens h [..., dim].

        h and out are NumPy arrays, torch tensors or objects with DLPack, of any two of the types float32, bfloat16,
        float16 and float64; the elements of the last axis lie side by side, all other strides are free. Returns `out`,
        which may be h itself but may not lie between h's first and last element otherwise; without one, a new array of
        h's kind and type (for DLPack a NumPy array).
        """
        return self._call(lib.swiglu_layer_block, "h", h, out)

    def forward(self, x: typing.Any, out: typing.Any = None) -> typing.Any:
        """down @ (silu(gate @ x) * (up @ x)) of tokens x [..., dim], without norm and residual. As block() otherwise."""
        return self._call(lib.swiglu_layer_forward, "x", x, out)

    def _call(self, function: typing.Callable[..., int], what: str, value: typing.Any, out: typing.Any) -> typing.Any:
        source = arrays.last_axis(arrays.array_of(what, value))
        if source.shape[-1] != self.dim:
            raise c.error_of("shape", f"{what}: expected [..., {self.dim}], found {list(source.shape)}")
        if out is None:
            out = _like(source, value)
        target = arrays.last_axis(arrays.array_of("out", out))
        if target.shape != source.shape:
            raise c.error_of("shape", f"out: expected {what}'s shape {list(source.shape)}, found {list(target.shape)}")
        if not target.writable:
            raise c.error_of("usage", "out: expected an array that may be written to, found a read-only one, or a copy")
        if arrays.repeats(target):
            raise c.error_of("usage", f"out: expected a place for each element, found strides {target.strides}")
        if arrays.overlap(source, target):
            raise c.error_of("usage", f"out: expected {what} itself or other memory, found a part of it, or of what "
                                      "lies between its rows")
        for rows_in, rows_out in arrays.matrices(source, target):
            check(function(self._handle, ctypes.byref(rows_in), ctypes.byref(rows_out), None, 0))
        arrays.written(out)
        return out

    def __repr__(self) -> str:
        return (f"<swiglu.FeedForward dim {self.dim}, hidden {self.hidden}, {self.compute} compute, "
                f"{self.storage[0]}, {self.isa}>")


def _like(source: arrays.Array, value: typing.Any) -> typing.Any:
    """A new array for results: `value`'s kind, type and shape."""
    if arrays.is_torch(value):
        return value.new_empty(value.shape)
    if isinstance(value, np.ndarray):
        return np.empty(value.shape, value.dtype)
    kinds = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
    if source.dtype not in kinds:
        raise c.error_of("usage", f"out: NumPy has no {source.dtype}: give an array to write to")
    return np.empty(source.shape, kinds[source.dtype])
