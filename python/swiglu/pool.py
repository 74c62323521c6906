"""Threads, shared by layers."""
from __future__ import annotations

import ctypes
import functools

from ._library import Owned, check, lib, whole


class ThreadPool(Owned):
    """A pool of `threads` threads, the calling one among them, to be shared by all layers of a process.

    0: SWIGLU_THREADS of the environment if set, else the CPUs that this process may use. A call that comes while
    another is at work runs on its own thread.
    """

    def __init__(self, threads: int = 0) -> None:
        handle = ctypes.c_void_p()
        threads = whole("threads", threads)
        check(lib.swiglu_pool_create(max(-1, min(threads, 2**31 - 1)), ctypes.byref(handle)))
        self._own(handle, lib.swiglu_pool_free)

    @property
    def threads(self) -> int:
        return lib.swiglu_pool_threads(self._handle)

    def __repr__(self) -> str:
        return f"swiglu.ThreadPool({self.threads})"


@functools.lru_cache(maxsize=None)
def default_pool() -> ThreadPool:
    """The pool of layers that were given none: made for the first of them."""
    return ThreadPool()
