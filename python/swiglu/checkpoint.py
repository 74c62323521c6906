"""Checkpoints: what people have, opened and described."""
from __future__ import annotations

import ctypes
import dataclasses
import os
import typing

from . import _library as c
from ._library import check, lib


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One feed-forward matrix or norm vector as stored."""

    name: str  #: as in the file
    role: str  #: "gate", "up", "down", "norm", or "gate and up" in one tensor
    layer: int
    expert: typing.Optional[int]  #: whose it is, where experts have tensors of their own
    dtype: str  #: the file's own name for it
    shape: tuple[int, ...]  #: merged over shards


class Checkpoint(c.Owned):
    """An opened checkpoint: a Hugging Face or Meta folder, or one .safetensors, .gguf, .pth, .bin or packed file.

    The bytes decide what it is, never the name. Opening reads headers only.

    eps: overrides the file's; hidden: confirms a width that the metadata contradicts; map: a packed file's weights stay
    in its pages, shared by all processes that map it; collect_problems: inconsistencies are kept in `problems`, for
    inspection, where something is readable.
    """

    def __init__(self, path: str | os.PathLike[str], *, eps: float | None = None, hidden: int | None = None,
                 map: bool = False, collect_problems: bool = False) -> None:
        if eps is not None and not eps > 0:
            raise c.error_of("usage", f"eps: expected a positive number, found {eps}")
        options = c.sized(c.OpenOptions, eps=eps or 0, hidden=0 if hidden is None else c.whole("hidden", hidden, 1),
                          map=bool(map), collect_problems=bool(collect_problems))
        name = os.fsencode(path)
        if b"\0" in name:
            raise c.error_of("usage", "path: expected a file's name, found one with a zero byte")
        handle = ctypes.c_void_p()
        check(lib.swiglu_checkpoint_open(name, ctypes.byref(options), ctypes.byref(handle)))
        self._own(handle, lib.swiglu_checkpoint_free)

    def _info(self) -> c.CheckpointInfo:
        info = c.sized(c.CheckpointInfo)
        check(lib.swiglu_checkpoint_get_info(self._handle, ctypes.byref(info)))
        return info

    @property
    def format(self) -> str:
        """huggingface, safetensors, meta, gguf or packed."""
        return self._info().format.decode()

    @property
    def family(self) -> str:
        """llama, mistral, …; empty if unknown."""
        return self._info().family.decode(errors="replace")

    @property
    def layers(self) -> int:
        """How many layers have a complete feed-forward."""
        return self._info().layers

    @property
    def layer_numbers(self) -> list[int]:
        """Which: 0 … layers - 1, but for a packed file of some layers only."""
        return [lib.swiglu_checkpoint_layer_number(self._handle, i) for i in range(self.layers)]

    @property
    def dim(self) -> int:
        return self._info().dim

    @property
    def hidden(self) -> int:
        return self._info().hidden

    @property
    def eps(self) -> float:
        return self._info().eps

    @property
    def experts(self) -> int:
        """Of each layer of a mixture of experts, else 0."""
        return self._info().experts

    @property
    def shards(self) -> int:
        """Weight files."""
        return self._info().shards

    @property
    def size_bytes(self) -> int:
        """Of those files."""
        return self._info().size_bytes

    @property
    def bytes_read(self) -> int:
        """From the files so far, by opening and by everything that came out of it."""
        return self._info().bytes_read

    @property
    def notes(self) -> list[str]:
        """What opening noticed."""
        return [lib.swiglu_checkpoint_note(self._handle, i).decode(errors="replace") for i in range(self._info().notes)]

    @property
    def problems(self) -> list[str]:
        """What is inconsistent, with collect_problems."""
        count = self._info().problems
        return [lib.swiglu_checkpoint_problem(self._handle, i).decode(errors="replace") for i in range(count)]

    @property
    def tensors(self) -> list[TensorInfo]:
        found = []
        for i in range(self._info().tensors):
            info = c.sized(c.TensorInfo)
            check(lib.swiglu_checkpoint_tensor(self._handle, i, ctypes.byref(info)))
            found.append(TensorInfo(info.name.decode(errors="replace"), info.role.decode(), info.layer,
                                    None if info.expert < 0 else info.expert, info.dtype.decode(errors="replace"),
                                    tuple(info.shape[:info.dimensions])))
        return found

    def layer(self, number: int, **options: typing.Any) -> "FeedForward":
        """FeedForward(self, number, **options)."""
        from .layer import FeedForward
        return FeedForward(self, number, **options)

    def __repr__(self) -> str:
        info = self._info()
        return (f"<swiglu.Checkpoint {info.format.decode()}: {info.layers} layers, dim {info.dim}, "
                f"hidden {info.hidden}>")


if typing.TYPE_CHECKING:
    from .layer import FeedForward
