"""The Python package on NumPy and DLPack: the formula, the bits, every kind of array, clear refusals. Needs NumPy; what
needs real files skips without SWIGLU_TEST_DATA."""
import concurrent.futures
import copy
import ctypes
import gc
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import swiglu

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("SWIGLU_TEST_DATA", "../shared/data"))
STORIES = DATA / "derived" / "stories260K"
needs_data = unittest.skipUnless(STORIES.is_dir(), "SWIGLU_TEST_DATA is missing")
DIM, HIDDEN = 48, 100


def weights(seed=1, dtype=np.float32, dim=DIM, hidden=HIDDEN):
    random = np.random.default_rng(seed)
    shapes = ((hidden, dim), (hidden, dim), (dim, hidden))
    return [(random.standard_normal(shape) / 8).astype(dtype) for shape in shapes]


def norm_of(dim=DIM):
    return (1 + np.arange(dim, dtype=np.float32) / 64).astype(np.float32)


def tokens(n, seed=2, dim=DIM):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def formula(x, gate, up, down):
    gate, up, down, x = (a.astype(np.float64) for a in (gate, up, down, x))
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def normed(h, norm, eps=1e-5):
    h = h.astype(np.float64)
    return h / np.sqrt((h * h).mean(-1, keepdims=True) + eps) * norm


def bf16(values):
    """As two bytes without a type; exact for values that bf16 has."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view("V2")


class Test(unittest.TestCase):
    def refuses(self, code, words, call, *arguments, **named):
        with self.assertRaises(swiglu.Error) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.code, code, str(caught.exception))
        for word in words.split():
            self.assertIn(word, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))


class Layer(Test):
    def setUp(self):
        self.weights = weights()
        self.layer = swiglu.FeedForward.from_weights(*self.weights, norm=norm_of())

    def test_is_the_formula(self):
        x = tokens(5)
        expected = formula(x, *self.weights)
        # f32 sums of at most 48 + 100 terms, each with a relative error of some 2^-24: far below 1e-5 of the whole.
        self.assertLess(np.linalg.norm(self.layer.forward(x) - expected) / np.linalg.norm(expected), 1e-5)
        expected = x + formula(normed(x, norm_of()), *self.weights)
        self.assertLess(np.linalg.norm(self.layer.block(x) - expected) / np.linalg.norm(expected), 1e-5)

    def test_describes_itself(self):
        self.assertEqual((self.layer.dim, self.layer.hidden, self.layer.eps), (DIM, HIDDEN, 1e-5))
        self.assertEqual((self.layer.compute, self.layer.storage), ("f32", ("plain f32", "plain f32")))
        self.assertIn(self.layer.isa, swiglu.available_isas())
        self.assertGreaterEqual(self.layer.packed_bytes, 3 * DIM * HIDDEN * 4)
        self.assertIn(f"hidden {HIDDEN}", repr(self.layer))
        self.assertIs(copy.deepcopy(self.layer), self.layer)
        for thing in (self.layer, swiglu.ThreadPool(1)):
            self.assertRaises((TypeError, ValueError), pickle.dumps, thing)

    def test_a_copy_is_the_thing_itself(self):
        for thing in (self.layer, swiglu.ThreadPool(2)):
            self.assertIs(copy.copy(thing), thing)
            self.assertIs(copy.deepcopy(thing), thing)

    def test_daemon_threads_in_a_call_outlive_the_interpreter(self):
        program = ("import threading, time, numpy, swiglu\n"
                   "ones = numpy.ones((1024, 256), numpy.float32)\n"
                   "layer = swiglu.FeedForward.from_weights(ones, ones, ones.T.copy())\n"
                   "def work():\n"
                   "    while True: layer.forward(ones[:256])\n"
                   "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
                   "time.sleep(0.2)\n")
        for _ in range(3):
            self.assertEqual(subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode, 0)

    def test_weights_of_every_type_and_stride(self):
        wide = [np.concatenate([w, np.full_like(w, np.nan)], 1)[:, :w.shape[1]] for w in self.weights]
        x = tokens(3)
        expected = self.layer.forward(x)
        self.assertTrue(np.array_equal(swiglu.FeedForward.from_weights(*wide).forward(x), expected))
        exact = [np.round(w * 64) / 64 for w in self.weights]  # values that all types have
        expected = swiglu.FeedForward.from_weights(*exact).forward(x)
        for cast in (np.float64, np.float16):
            found = swiglu.FeedForward.from_weights(*[w.astype(cast) for w in exact]).forward(x)
            self.assertTrue(np.array_equal(found, expected), cast)
        found = swiglu.FeedForward.from_weights(*map(bf16, exact), compute="f32").forward(x)
        self.assertTrue(np.array_equal(found, expected))
        self.assertEqual(swiglu.FeedForward.from_weights(*map(bf16, exact)).compute, "bf16")

    def test_weights_may_go(self):
        x = tokens(2)
        expected = self.layer.block(x)
        layer = swiglu.FeedForward.from_weights(*(w.copy() for w in self.weights), norm=norm_of().copy())
        gc.collect()
        rubbish = [np.full_like(w, 7) for w in self.weights]
        self.assertTrue(np.array_equal(layer.block(x), expected))
        del rubbish

    def test_the_same_bits_for_every_shape_and_stride(self):
        h = tokens(24)
        expected = self.layer.block(h)
        self.assertTrue(np.array_equal(np.concatenate([self.layer.block(h[i]) [None] for i in range(24)]), expected))
        big = np.full((2, 5, 3, 4, DIM + 7), np.nan, np.float32)
        cases = {
            "a batch": h.reshape(2, 3, 4, DIM),
            "rows apart": np.repeat(h, 2, 0)[::2].reshape(24, DIM),
            "backwards": h[::-1].copy()[::-1],
            "axes swapped": h.reshape(4, 6, DIM).swapaxes(0, 1).copy().swapaxes(0, 1),
            "a window": big[:, 1, :, :, 3:3 + DIM],
            "one of one": h.reshape(1, 24, 1, DIM),
        }
        cases["a window"][...] = h.reshape(2, 3, 4, DIM)
        for name, case in cases.items():
            found = self.layer.block(case)
            self.assertEqual(found.shape, case.shape, name)
            self.assertTrue(np.array_equal(found.reshape(24, DIM), expected), name)
            out = np.full((*case.shape[:-1], DIM + 1), np.nan, np.float32)[..., 1:]
            self.assertIs(self.layer.block(case, out), out)
            self.assertTrue(np.array_equal(out.reshape(24, DIM), expected), name)
        for name in ("a window", "backwards", "axes swapped"):  # in place
            self.layer.block(cases[name], out=cases[name])
            self.assertTrue(np.array_equal(cases[name].reshape(24, DIM), expected), name)
        self.assertTrue(np.isnan(big[:, 1, :, :, :3]).all() and np.isnan(big[:, 0]).all())
        self.assertTrue(np.array_equal(self.layer.block(np.broadcast_to(h[0], (3, DIM))), expected[[0, 0, 0]]))

    def test_an_axis_of_one_element_may_have_any_stride(self):
        h = tokens(1)
        expected = self.layer.block(h)
        odd = np.lib.stride_tricks.as_strided(h, (1, 1, DIM), (3, 5, 4))
        self.assertTrue(np.array_equal(self.layer.block(odd)[0], expected))
        none = np.lib.stride_tricks.as_strided(h, (0, DIM), (3, 4))
        self.assertEqual(self.layer.block(none).shape, (0, DIM))
        self.layer.block(h, out=np.lib.stride_tricks.as_strided(h, (1, DIM), (4, 4)))  # in place all the same
        self.assertTrue(np.array_equal(h, expected))

    def test_unaligned_memory(self):
        raw = np.zeros(24 * DIM * 4 + 1, np.uint8)[1:].view(np.float32).reshape(24, DIM)
        raw[...] = tokens(24)
        self.assertTrue(np.array_equal(self.layer.forward(raw), self.layer.forward(tokens(24))))

    def test_every_element_type(self):
        exact = np.round(tokens(3) * 8) / 8
        expected = self.layer.forward(exact)
        for cast in (np.float64, np.float16):
            self.assertEqual(self.layer.forward(exact.astype(cast)).dtype, cast)
            self.assertTrue(np.array_equal(self.layer.forward(exact.astype(cast), np.empty_like(expected)), expected))
        found = self.layer.forward(bf16(exact), np.empty_like(expected))
        self.assertTrue(np.array_equal(found, expected))
        self.assertEqual(self.layer.forward(bf16(exact)).dtype, np.dtype("V2"))

    def test_no_tokens(self):
        for shape in ((0, DIM), (3, 0, DIM), (0, 0, 5, DIM)):
            self.assertEqual(self.layer.block(np.empty(shape, np.float32)).shape, shape)

    def test_refuses_what_does_not_fit(self):
        h, block = tokens(4), self.layer.block
        self.refuses("shape", "h: expected 48 found [4, 47]", block, h[:, :-1])
        self.refuses("usage", "at least one axis", block, np.zeros(()))
        self.refuses("usage", "h: stride 2", block, np.zeros((4, 2 * DIM), np.float32)[:, ::2])
        self.refuses("usage", "stride", block, np.zeros((DIM, 4), np.float32).T)
        self.refuses("usage", "int32", block, np.zeros((4, DIM), np.int32))
        self.refuses("usage", "complex64", block, np.zeros((4, DIM), np.complex64))
        self.refuses("usage", "byte order", block, h.astype(">f4"))
        self.refuses("usage", "mask", block, np.ma.masked_array(h, h > 0))
        self.refuses("usage", "out: read-only", block, h, np.broadcast_to(np.zeros(DIM, np.float32), h.shape))
        frozen = np.empty_like(h)
        frozen.flags.writeable = False
        self.refuses("usage", "out: read-only", block, h, frozen)
        self.refuses("shape", "out: [4, 48] [3, 48]", block, h, np.empty((3, DIM), np.float32))
        self.refuses("usage", "out: place", block, h[:2],
                     np.lib.stride_tricks.as_strided(np.empty(99, np.float32), (2, DIM), (4, 4)))
        both = np.zeros((5, DIM), np.float32)
        self.refuses("usage", "out: expected h itself", block, both[:4], both[1:])
        self.refuses("usage", "part", block, both[:4], both[:4].view(np.float16)[:, :DIM])
        for wrong in (h.tolist(), None, "h", 3):
            with self.assertRaisesRegex(TypeError, "h: expected a NumPy array"):
                block(wrong)
        bare = swiglu.FeedForward.from_weights(*self.weights)
        self.assertFalse(bare.has_norm)
        self.refuses("usage", "norm", bare.block, h)
        self.assertIsInstance(swiglu.ArgumentError("usage", ""), ValueError)

    def test_refuses_weights_that_do_not_fit(self):
        gate, up, down = self.weights
        make = swiglu.FeedForward.from_weights
        self.refuses("shape", "down", make, gate, up, down.T.copy())
        self.refuses("shape", "up", make, gate, up[:-1], down)
        self.refuses("shape", "matrix", make, gate[None], up, down)
        self.refuses("usage", "gate side by side", make, gate.T, up, down)
        self.refuses("shape", "norm", make, gate, up, down, norm=norm_of()[:-1])
        with self.assertRaisesRegex(TypeError, "pool: expected a swiglu.ThreadPool, found int"):
            make(gate, up, down, pool=4)
        self.refuses("usage", "eps", make, gate, up, down, norm=norm_of(), eps=0.0)
        self.refuses("usage", "eps", make, gate, up, down, norm=norm_of(), eps=float("nan"))
        self.refuses("usage", "compute automatic f32 bf16 f8", make, gate, up, down, compute="f8")
        self.refuses("usage", "storage", make, gate, up, down, storage="")
        self.refuses("usage", "isa", make, gate, up, down, isa="sse")
        self.assertRaises(swiglu.Error, make, gate[:0], up[:0], down[:, :0])

    def test_no_bit_depends_on_threads_isa_or_storage(self):
        exact = [bf16(w) for w in weights(dim=70, hidden=600)]
        h = tokens(9, dim=70)
        first = swiglu.FeedForward.from_weights(*exact, norm=norm_of(70)).block(h)
        for isa in swiglu.available_isas():
            for threads, storage in ((1, "plain"), (3, "compact")):
                layer = swiglu.FeedForward.from_weights(*exact, norm=norm_of(70), isa=isa, storage=storage,
                                                        pool=swiglu.ThreadPool(threads))
                self.assertEqual(layer.isa, isa)
                self.assertTrue(np.array_equal(layer.block(h), first), f"{isa}, {threads}, {storage}")

    def test_eight_threads_at_once(self):
        inputs = [tokens(1 + i % 5, seed=i) for i in range(64)]
        expected = [self.layer.block(h) for h in inputs]

        def work(which):
            return all(np.array_equal(self.layer.block(inputs[i]), expected[i])
                       for _ in range(20) for i in range(which, 64, 8))

        with concurrent.futures.ThreadPoolExecutor(8) as executor:
            self.assertEqual(list(executor.map(work, range(8))), [True] * 8)

    def test_errors_belong_to_their_thread(self):
        def work(which):
            for _ in range(50):
                with self.assertRaises(swiglu.Error) as caught:
                    swiglu.Checkpoint(f"nothing-{which}")
                if f"nothing-{which}" not in str(caught.exception):
                    return str(caught.exception)
            return None

        with concurrent.futures.ThreadPoolExecutor(8) as executor:
            self.assertEqual(list(executor.map(work, range(8))), [None] * 8)

    def test_ten_thousand_layers_leave_nothing(self):
        gate, up, down = weights(dim=8, hidden=8)

        def resident():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1])

        for i in range(10_000):
            swiglu.FeedForward.from_weights(gate, up, down)
            if i == 999:
                before = resident()
        # A page a cycle, the least that a layer takes, would be 9000.
        self.assertLess(resident() - before, 1000)

    def test_progress(self):
        seen = []
        swiglu.FeedForward.from_weights(*weights(dim=512, hidden=700), progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(max(seen)[0], max(seen)[1])
        with self.assertRaises(ZeroDivisionError):
            swiglu.FeedForward.from_weights(*self.weights, progress=lambda done, total: 1 // 0)
        swiglu.FeedForward.from_weights(*self.weights, progress=lambda done, total: tokens(2))

    def test_survives_fork(self):
        h = tokens(3)
        expected = self.layer.block(h)
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(self.layer.block(h), expected) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


@needs_data
class Checkpoints(Test):
    def test_every_form_gives_the_published_answer(self):
        x = np.load(STORIES / "x.npy")
        right = np.load(STORIES / "y_x_plus_ffn_rmsnorm.npy")
        for form in ("hf_f32", "meta_mp1_f32"):
            model = swiglu.Checkpoint(STORIES / form)
            self.assertEqual((model.layers, model.dim, model.hidden, model.eps), (5, 64, 172, 1e-5))
            for i in model.layer_numbers:
                found = model.layer(i).block(x)
                # 172 + 64 terms of f32, bounded as above.
                self.assertLess(np.linalg.norm(found - right[i]) / np.linalg.norm(right[i]), 1e-5)

    def test_says_what_it_is(self):
        model = swiglu.Checkpoint(STORIES / "hf_bf16_sharded")
        self.assertEqual((model.format, model.family, model.shards, model.experts), ("huggingface", "llama", 2, 0))
        self.assertGreater(model.size_bytes, model.bytes_read)
        gates = [t for t in model.tensors if t.role == "gate"]
        self.assertEqual([t.shape for t in gates], [(172, 64)] * 5)
        self.assertEqual((gates[3].layer, gates[3].dtype, gates[3].expert), (3, "BF16", None))
        self.assertEqual(model.problems, [])
        self.assertIn("5 layers", repr(model))
        self.assertEqual(swiglu.FeedForward(STORIES / "hf_bf16_sharded", 4).compute, "bf16")
        self.refuses("usage", "layer 5", swiglu.FeedForward, model, 5)
        self.refuses("usage", "expert", swiglu.FeedForward, model, 0, expert=1)

    def test_a_damaged_file_is_an_error_with_the_librarys_text(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "cut.safetensors"
            file.write_bytes((STORIES / "hf_f32" / "model.safetensors").read_bytes()[:-1])
            self.refuses("format", "cut.safetensors", swiglu.Checkpoint, file)

    def test_refuses_what_is_no_path(self):
        self.refuses("not_found", "nothing", swiglu.Checkpoint, "nothing")
        self.refuses("usage", "zero", swiglu.Checkpoint, "a\0b")
        self.refuses("usage", "eps", swiglu.Checkpoint, STORIES / "hf_f32", eps=-1)
        self.refuses("usage", "hidden", swiglu.Checkpoint, STORIES / "hf_f32", hidden=0)
        self.assertRaises(TypeError, swiglu.Checkpoint, 3)
        self.assertRaises(TypeError, swiglu.FeedForward, STORIES / "hf_f32", 0.5)


def readme(which):
    """The n-th block of Python in README's section on it."""
    section = (ROOT / "README.md").read_text().split("\n## From Python\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)[which]


class Rest(Test):
    @needs_data
    def test_the_readme(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "model").symlink_to((STORIES / "hf_f32").resolve())
            program = readme(0) + "assert out.shape == (2, 7, 64) and np.array_equal(out, h) and not np.array_equal(y, h)\n"
            done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_width(self):
        self.assertEqual(swiglu.ffn_width(4096, 1024, 1.3), 14336)
        self.refuses("usage", "dim", swiglu.ffn_width, 0)
        self.refuses("usage", "multiplier", swiglu.ffn_width, 4096, multiplier=0)

    def test_threads(self):
        self.assertEqual(swiglu.ThreadPool(3).threads, 3)
        self.refuses("usage", "threads", swiglu.ThreadPool, -1)
        self.assertRaises((swiglu.Error, OSError), swiglu.ThreadPool, 2**40)

    def test_the_command(self):
        done = subprocess.run([sys.executable, "-m", "swiglu", "width", "--dim", "4096"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "11008"), done.stderr)
        done = subprocess.run([sys.executable, "-m", "swiglu", "inspect", "nothing"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 3)

    def test_its_structs_are_those_of_the_header(self):
        from swiglu import _library as library
        text = re.sub(r"/\*.*?\*/", "", (ROOT / "include" / "swiglu" / "swiglu.h").read_text(), flags=re.S)
        ours = {"swiglu_view": library.View, "swiglu_mutable_view": library.View,
                "swiglu_open_options": library.OpenOptions, "swiglu_checkpoint_info": library.CheckpointInfo,
                "swiglu_tensor_info": library.TensorInfo, "swiglu_layer_options": library.LayerOptions,
                "swiglu_weights": library.Weights, "swiglu_layer_info": library.LayerInfo}
        found = {name: body for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S)}
        self.assertEqual(set(found) - {"swiglu_runner"}, set(ours))
        for name, kind in ours.items():
            fields = []
            for line in filter(None, (" ".join(part.split()) for part in found[name].split(";"))):
                pointer = re.match(r".*\(\*(\w+)\)\(.*\)$", line) or re.match(r".*\*\s*(\w+)$", line)
                type_name, field = ("pointer", pointer[1]) if pointer else line.rsplit(" ", 1)
                fields.append((field, {"int64_t": ctypes.c_int64, "double": ctypes.c_double, "pointer": ctypes.c_void_p,
                                       "swiglu_view": library.View}.get(type_name, ctypes.c_int32)))
            self.assertEqual([f for f, _ in fields], [f for f, *_ in kind._fields_], name)
            for (field, expected), (_, actual) in zip(fields, kind._fields_):
                same = actual is expected or (expected is ctypes.c_void_p and ctypes.sizeof(actual) == 8
                                              and actual not in (ctypes.c_int64, ctypes.c_double))
                self.assertTrue(same, f"{name}.{field}: {actual}")
        declared = set(re.findall(r"\b(swiglu_\w+)\(", text))
        self.assertLessEqual(set(library._FUNCTIONS), declared)


if __name__ == "__main__":
    unittest.main(verbosity=2)
