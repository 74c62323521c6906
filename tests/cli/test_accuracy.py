"""`run` and `verify` on a trained model, against a float64 reference made here from its own files."""
import struct
import unittest

import numpy as np

from support import (DIM, HIDDEN, LAYERS, STORIES, CommandTest, bf16_bits, feed_forward, from_bf16, needs_data,
                     normalised, read_bf16_npy, relative, trained_layers_bf16, trained_layers_f32)

F32_MODELS = {"hf_f32": LAYERS, "meta_mp1_f32": LAYERS, "meta_strided_f32": 1, "gguf/ffn.f32.gguf": LAYERS,
              "gguf/ffn.f32.v2.align64.gguf": LAYERS}
BF16_MODELS = {"hf_bf16_sharded": LAYERS, "meta_mp2_bf16_shared": LAYERS}
F32_LIMIT, BF16_LIMIT = 1e-6, 4e-3


def decoded_layers(path):
    """A GGUF file's layers in float64, by numpy and the formats' definitions; nothing here is the library's."""
    raw, at = path.read_bytes(), 24
    def number(form):
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from("<" + form, raw, at - struct.calcsize(form))[0]
    def text():
        nonlocal at
        size = number("Q")
        at += size
        return raw[at - size:at].decode()
    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = number("I"), number("Q")
            return [value(inner) for _ in range(count)]
        return number({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])
    tensors, pairs = struct.unpack_from("<QQ", raw, 8)
    for _ in range(pairs):
        text()
        value(number("I"))
    infos = []
    for _ in range(tensors):
        name = text()
        shape = [number("Q") for _ in range(number("I"))]
        infos.append((name, shape[::-1], number("I"), number("Q")))
    start = -(-at // 32) * 32
    found = {name: decoded(kind, raw, start + offset, int(np.prod(shape))).reshape(shape)
             for name, shape, kind, offset in infos}
    names = {"norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    return [{role: found[f"blk.{i}.{name}.weight"] for role, name in names.items()} for i in range(LAYERS)]


def decoded(kind, raw, start, count):
    if kind in (0, 1):
        return np.frombuffer(raw, "<f4" if kind == 0 else "<f2", count, start).astype(np.float64)
    size = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34}[kind]
    blocks = np.frombuffer(raw, np.uint8, count // 32 * size, start).reshape(-1, size)
    half = lambda at: blocks[:, at:at + 2].copy().view("<f2").astype(np.float64)
    if kind == 8:
        return (blocks[:, 2:].view(np.int8) * half(0)).ravel()
    nibbles = blocks[:, -16:]
    q = np.concatenate([nibbles & 15, nibbles >> 4], 1).astype(np.float64)
    if kind in (6, 7):
        high = blocks[:, size - 20:size - 16].copy().view("<u4")
        q += 16 * ((high >> np.arange(32, dtype=np.uint32)) & 1)
    if kind in (2, 6):
        return ((q - (8 if kind == 2 else 16)) * half(0)).ravel()
    return (q * half(0) + half(2)).ravel()


@needs_data
class Accuracy(CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.x = np.load(STORIES / "x.npy").astype(np.float64)
        cls.f32, cls.bf16 = trained_layers_f32(), trained_layers_bf16()

    def run_layer(self, model, layer, *flags, x="x.npy"):
        out = self.folder / "y.npy"
        self.done("run", STORIES / model, "--layer", layer, "--input", STORIES / x, "-o", out, *flags)
        return np.load(out)

    def check(self, models, layers, limit, *flags):
        for model, count in models.items():
            for i in range(count):
                with self.subTest(model=model, layer=i):
                    y = self.run_layer(model, i, "--part", "ffn", "--dtype", "f32", *flags)
                    self.assertEqual((y.dtype, y.shape), (np.float32, (4, DIM)))
                    self.assertLess(relative(y, feed_forward(self.x, layers[i])), limit)
                    h = self.run_layer(model, i, "--dtype", "f32", *flags)
                    self.assertLess(relative(h - self.x, feed_forward(normalised(self.x, layers[i]), layers[i])), limit)

    def test_the_references_agree_with_the_stored_ones(self):
        ffn, block = np.load(STORIES / "y_ffn_only.npy"), np.load(STORIES / "y_x_plus_ffn_rmsnorm.npy")
        for i in range(LAYERS):
            self.assertLess(relative(feed_forward(self.x, self.f32[i]), ffn[i]), 1e-12)
            self.assertLess(relative(self.x + feed_forward(normalised(self.x, self.f32[i]), self.f32[i]), block[i]), 1e-12)
            for role in self.f32[i]:
                self.assertTrue(np.array_equal(from_bf16(bf16_bits(self.f32[i][role])), self.bf16[i][role]), role)

    def test_f32_weights(self):
        self.check(F32_MODELS, self.f32, F32_LIMIT)

    def test_bf16_weights(self):
        self.check(BF16_MODELS, self.bf16, BF16_LIMIT)

    def test_bf16_weights_in_f32_compute(self):
        self.check(BF16_MODELS, self.bf16, F32_LIMIT, "--compute", "f32")

    def test_f32_weights_in_bf16_compute(self):
        self.check({"hf_f32": LAYERS}, self.bf16, BF16_LIMIT, "--compute", "bf16")

    def test_gguf_weights(self):
        """GGUF keeps the norms in f32 beside bf16 and f16 matrices; quantised ones are their decoded values."""
        narrowed = {"ffn.bf16.gguf": lambda w: from_bf16(bf16_bits(w)).astype(np.float64).reshape(w.shape),
                    "ffn.f16.gguf": lambda w: w.astype(np.float16).astype(np.float64)}
        for name, narrow in narrowed.items():
            layers = [{role: w if role == "norm" else narrow(w) for role, w in layer.items()} for layer in self.f32]
            self.check({f"gguf/{name}": LAYERS}, layers, F32_LIMIT, "--compute", "f32")
        mixed = "ffn.mixed_q8_0_q4_0_q4_1_q5_0_q5_1.gguf"
        layers = decoded_layers(STORIES / "gguf" / mixed)
        self.check({f"gguf/{mixed}": LAYERS}, layers, F32_LIMIT)
        # What quantising leaves of the trained weights: half a step of each block, so at most the types' known errors.
        for i, error in enumerate((.0054, .0856, .0765, .0431, .0374)):
            for role in ("gate", "up"):
                self.assertLess(relative(layers[i][role], self.f32[i][role]), 1.2 * error, (i, role))

    def test_containers_and_shards_give_identical_bits(self):
        for i in range(LAYERS):
            for models in (F32_MODELS, BF16_MODELS):
                outputs = [self.run_layer(model, i, "--dtype", "f32").tobytes()
                           for model, count in models.items() if i < count]
                self.assertEqual(len(set(outputs)), 1, (i, models))

    def test_tiers_and_threads_give_identical_bits(self):
        from support import swiglu
        outputs = set()
        for isa in ("scalar", "avx2", "avx512", "avx512bf16"):
            for threads in (1, 2, 3):
                out = self.folder / f"{isa}{threads}.npy"
                done = swiglu("run", STORIES / "hf_bf16_sharded", "--layer", 3, "--input", STORIES / "x.npy", "-o", out,
                              "--threads", threads, env={"SWIGLU_ISA": isa})
                if done.code == 2 and isa in done.err:
                    self.assertFalse(out.exists())
                    continue  # this machine lacks it, and says so
                self.assertEqual(done.code, 0, done.err)
                self.assertIn(isa, done.err)
                outputs.add(out.read_bytes())
        self.assertEqual(len(outputs), 1)

    def test_every_form_of_the_input(self):
        expected = self.run_layer("hf_f32", 2)
        self.assertEqual(expected.dtype, np.float32)
        fortran = self.run_layer("hf_f32", 2, x="x_fortran_v2.npy")
        self.assertEqual(fortran.tobytes(), expected.tobytes())
        doubles = self.run_layer("hf_f32", 2, x="x_bigendian_f8.npy")
        self.assertEqual(doubles.dtype, np.dtype("<f8"))
        self.assertEqual(doubles.astype(np.float32).tobytes(), expected.tobytes())

    def test_bf16_inputs_come_out_as_bf16(self):
        out = self.folder / "y.npy"
        rounded = from_bf16(bf16_bits(self.x)).astype(np.float64).reshape(4, DIM)
        right = rounded + feed_forward(normalised(rounded, self.f32[2]), self.f32[2])
        written = []
        for name, flags in (("x_bf16_as_V2.npy", []), ("x_bf16_as_u2.npy", ["--input-dtype", "bf16"])):
            self.done("run", STORIES / "hf_f32", "--layer", 2, "--input", STORIES / name, "--output", out, *flags)
            self.assertIn(b"'<V2'", out.read_bytes()[:128])
            self.assertLess(relative(read_bf16_npy(out).reshape(4, DIM), right), BF16_LIMIT)
            written.append(out.read_bytes())
        self.assertEqual(written[0], written[1])

    def test_output_types(self):
        wide = self.run_layer("hf_f32", 1, "--dtype", "f64")
        self.assertEqual(wide.tobytes(), self.run_layer("hf_f32", 1).astype(np.float64).tobytes())
        half = self.run_layer("hf_f32", 1, "--dtype", "f16")
        self.assertEqual(half.tobytes(), wide.astype(np.float16).tobytes())
        self.assertEqual(self.run_layer("hf_f32", 1, "--dtype", "bf16").tobytes(), bf16_bits(wide).tobytes())

    def test_shapes(self):
        x = np.load(STORIES / "x.npy")
        expected = self.run_layer("hf_f32", 0)
        for shape in ((2, 2, DIM), (4, 1, DIM), (1, 4, DIM)):
            np.save(self.folder / "x.npy", x.reshape(shape))
            self.assertEqual(self.run_layer("hf_f32", 0, x=self.folder / "x.npy").tobytes(), expected.tobytes())
        np.save(self.folder / "x.npy", x[3])
        one = self.run_layer("hf_f32", 0, x=self.folder / "x.npy")
        self.assertEqual(one.shape, (DIM,))
        self.assertEqual(one.tobytes(), expected[3].tobytes())
        for shape in ((0, DIM), (3, 0, DIM)):
            np.save(self.folder / "x.npy", np.zeros(shape, np.float32))
            self.assertEqual(self.run_layer("hf_f32", 0, x=self.folder / "x.npy").shape, shape)

    def test_meta_numerics(self):
        # Eight roundings to bf16, each within 2^-9: near the exact result, but not the fused one.
        for i in range(LAYERS):
            y = self.run_layer("hf_bf16_sharded", i, "--part", "ffn", "--numerics", "meta", "--dtype", "f32")
            self.assertEqual(from_bf16(bf16_bits(y)).tobytes(), y.tobytes())
            error = relative(y, feed_forward(from_bf16(bf16_bits(self.x)).reshape(4, DIM).astype(float), self.bf16[i]))
            self.assertLess(error, 2e-2)
            self.assertGreater(error, 1e-3)

    def test_eps_and_notes_of_a_bare_file(self):
        out = self.folder / "y.npy"
        bare = STORIES / "hf_f32" / "model.safetensors"
        arguments = ("run", bare, "--layer", 0, "--input", STORIES / "x.npy", "-o", out)
        outcome = self.done(*arguments)
        self.assertIn("swiglu: note:", outcome.err)
        self.assertEqual(np.load(out).tobytes(), self.run_layer("hf_f32", 0).tobytes())
        self.done(*arguments, "--eps", "0.5")
        h = np.load(out)
        self.assertLess(relative(h - self.x, feed_forward(normalised(self.x, self.f32[0], 0.5), self.f32[0])), F32_LIMIT)

    def test_run_says_what_it_did(self):
        out = self.folder / "y.npy"
        said = self.done("run", STORIES / "hf_bf16_sharded", "--layer", 4, "--input", STORIES / "x.npy", "-o", out,
                         "--threads", 1).err
        for word in ("layer 4", str(DIM), str(HIDDEN), "[4, 64]", "compute bf16", "bf16 (1", "bits a weight", "1 thread", "s; "):
            self.assertIn(word, said)

    def test_verify(self):
        for model, count in {**F32_MODELS, **BF16_MODELS}.items():
            report = self.done("verify", STORIES / model, "--json").json
            self.assertEqual(report["schema_version"], 1)
            self.assertTrue(report["pass"])
            computes = 2 if model in BF16_MODELS else 1
            self.assertEqual(len(report["layers"]), count * computes)
            for layer in report["layers"]:
                self.assertEqual([i["input"] for i in layer["inputs"]], ["normal", "heavy-tailed"])
                limit = BF16_LIMIT if layer["compute"] == "bf16" else F32_LIMIT
                for result in layer["inputs"]:
                    for matrix in ("norm", "gate", "up", "z", "down", "out"):
                        self.assertEqual(result[matrix]["skipped"], 0)
                        self.assertLess(result[matrix]["relative_error"], limit * 1.5)
                        self.assertLessEqual(result[matrix]["stage_relative_error"], result[matrix]["stage_relative_bound"])
                self.assertEqual(layer["bits"]["runs"], layer["bits"]["equal"])
                self.assertEqual(layer["bits"]["isas"][-1], "scalar")
        text = self.done("verify", STORIES / "hf_f32", "--layer", 2, "--input", STORIES / "x.npy").out
        for word in ("norm", "gate", "up", "down", "bound", "x.npy", "✓"):
            self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
