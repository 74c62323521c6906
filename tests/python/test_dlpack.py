"""DLPack: arrays of somebody else's are read and written where they lie, for as long as their capsule says, and a capsule
of odd content is refused. Needs NumPy."""
import ctypes
import sys
import types
import unittest

import numpy as np

import swiglu
from test_swiglu import DIM, Test, norm_of, tokens, weights


class Foreign:
    """An array of somebody else's, with DLPack only."""

    def __init__(self, array, device=(1, 0), old=False):
        self.array, self.device, self.old = array, device, old

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **named):
        if self.old and named:
            raise TypeError("no keywords")
        return self.array.__dlpack__()


class Capsule:
    """A capsule of whatever content, as DLPack's C struct has it."""

    class Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                    ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                    ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    def __init__(self, data, shape, ndim=None, lanes=1, offset=0, flags=None):
        shape = shape and (ctypes.c_int64 * len(shape))(*shape)
        self.tensor = Capsule.Tensor(data, (1, 0), len(shape or ()) if ndim is None else ndim, 2, 32, lanes, shape, None, offset)
        self.name = b"dltensor"
        if flags is not None:  # version 1 puts a head before it
            head = bytes((ctypes.c_uint64 * 4)(1, 0, 0, flags))
            self.shape, self.tensor = shape, ctypes.create_string_buffer(head + bytes(self.tensor))
            self.name = b"dltensor_versioned"

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), self.name, None)


class DLPack(Test):
    def test_weights_that_the_capsule_alone_holds(self):
        class Temporary(Foreign):
            def __dlpack__(self, **named):
                return (self.array * 1).__dlpack__()

        big = weights(dim=1024, hidden=1024)
        x = tokens(2, dim=1024)
        expected = swiglu.FeedForward.from_weights(*big).forward(x)
        self.assertTrue(np.array_equal(swiglu.FeedForward.from_weights(*map(Temporary, big)).forward(x), expected))

    def test_a_norm_without_elements(self):
        self.refuses("shape", "norm 48 0", swiglu.FeedForward.from_weights, *weights(), norm=Foreign(Capsule(None, [0])))

    def test_capsules_of_odd_content(self):
        layer, h = swiglu.FeedForward.from_weights(*weights()), tokens(4)
        expected, at = layer.forward(h), h.ctypes.data
        self.assertTrue(np.array_equal(layer.forward(Foreign(Capsule(at, [3, DIM], offset=4 * DIM))), expected[1:]))
        self.assertTrue(np.array_equal(layer.forward(Foreign(Capsule(at, [4, DIM], flags=0))), expected))
        self.assertEqual(layer.forward(Foreign(Capsule(None, [0, DIM]))).shape, (0, DIM))
        self.refuses("usage", "x: 4 at once", layer.forward, Foreign(Capsule(at, [4, DIM], lanes=4)))
        self.refuses("usage", "x: shape -1", layer.forward, Foreign(Capsule(at, [4, DIM], ndim=-1)))
        self.refuses("usage", "x: shape -4", layer.forward, Foreign(Capsule(at, [-4, DIM])))
        self.refuses("usage", "x: shape 2 axes", layer.forward, Foreign(Capsule(at, None, ndim=2)))
        self.refuses("usage", "x: one axis", layer.forward, Foreign(Capsule(at, None)))
        self.refuses("usage", "null", layer.forward, Foreign(Capsule(None, [4, DIM], offset=64)))
        for flags in (1, 2):  # read-only; a copy, which the caller would never see
            self.refuses("usage", "out: read-only", layer.forward, h, Foreign(Capsule(at, [4, DIM], flags=flags)))

    def test_is_read_and_written_without_a_copy(self):
        layer = swiglu.FeedForward.from_weights(*map(Foreign, weights()), norm=Foreign(norm_of()))
        h = tokens(6)
        expected = swiglu.FeedForward.from_weights(*weights(), norm=norm_of()).block(h)
        for old in (False, True):
            found = layer.block(Foreign(h.reshape(2, 3, DIM), old=old))
            self.assertTrue(np.array_equal(found.reshape(6, DIM), expected))
        out = np.empty_like(h)
        layer.block(Foreign(h), Foreign(out))
        self.assertTrue(np.array_equal(out, expected))
        before = sys.getrefcount(h)
        for _ in range(100):
            layer.block(Foreign(h))
        self.assertLess(sys.getrefcount(h) - before, 3)

    def test_refuses_other_devices_and_types(self):
        layer = swiglu.FeedForward.from_weights(*weights())
        self.refuses("usage", "x: CPU CUDA 2:1", layer.forward, Foreign(tokens(1), (2, 1)))
        self.refuses("usage", "x: type", layer.forward, Foreign(np.zeros((1, DIM), np.int32)))

    def test_arrays_of_jax_are_not_written_to(self):
        before = sys.modules.get("jax")
        sys.modules["jax"] = types.SimpleNamespace(Array=Foreign)
        self.addCleanup(lambda: sys.modules.pop("jax") if before is None else sys.modules.update(jax=before))
        h = tokens(2)
        layer = swiglu.FeedForward.from_weights(*weights())
        layer.forward(Foreign(h))
        self.refuses("usage", "out: read-only", layer.forward, h, Foreign(np.empty_like(h), old=True))


if __name__ == "__main__":
    unittest.main(verbosity=2)
