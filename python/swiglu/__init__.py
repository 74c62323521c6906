"""The Llama 3 feed-forward sublayer for CPUs, as one call.

    out = h + W2 @ (silu(W1 @ n) * (W3 @ n)),   n = RMSNorm(h)

    import numpy as np, swiglu
    model = swiglu.Checkpoint("Meta-Llama-3-8B")      # Hugging Face, Meta, GGUF, safetensors, packed
    layer = swiglu.FeedForward(model, 0)              # reads and packs the weights, once
    out = layer.block(h)                              # h: [..., dim], NumPy, torch (bf16 too) or DLPack

A token's result has the same bits whatever the batch, the strides, the number of threads and the processor. Calls give
the GIL away and may be made from any number of threads at once.
"""
from ._errors import ArgumentError, Error, OutOfMemory
from ._library import available_isas, ffn_width, version as _version
from .checkpoint import Checkpoint, TensorInfo
from .layer import FeedForward
from .pool import ThreadPool

__version__ = _version()
__all__ = ["ArgumentError", "Checkpoint", "Error", "FeedForward", "OutOfMemory", "TensorInfo", "ThreadPool",
           "available_isas", "ffn_width"]
