"""`run` and `verify` on a trained model, against a float64 reference made here from its own files."""
import unittest

import numpy as np

from support import (DIM, HIDDEN, LAYERS, STORIES, CommandTest, bf16_bits, feed_forward, from_bf16, needs_data,
                     normalised, read_bf16_npy, relative, trained_layers_bf16, trained_layers_f32)

F32_MODELS = {"hf_f32": LAYERS, "meta_mp1_f32": LAYERS, "meta_strided_f32": 1}
BF16_MODELS = {"hf_bf16_sharded": LAYERS, "meta_mp2_bf16_shared": LAYERS}
F32_LIMIT, BF16_LIMIT = 1e-6, 4e-3


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
