"""synth -> inspect -> run -> verify: what the command makes, it can read, and all forms of it agree."""
import hashlib
import unittest

import numpy as np

from support import (HF_NAMES, CommandTest, feed_forward, from_bf16, normalised, read_safetensors, relative)

DIM, HIDDEN = 48, 128


class RoundTrip(CommandTest):
    def make(self, name, *flags):
        self.done("synth", "--dim", DIM, "--hidden", HIDDEN, "--layers", 2, "-o", self.folder / name, *flags)
        return self.folder / name

    def output_of(self, model, layer=1, *flags):
        out = self.folder / "y.npy"
        self.done("run", model, "--layer", layer, "--input", self.input, "-o", out, *flags)
        return np.load(out)

    def setUp(self):
        super().setUp()
        self.input = self.folder / "x.npy"
        self.x = np.random.default_rng(5).standard_normal((5, DIM)).astype(np.float32)
        np.save(self.input, self.x)

    def test_formats_and_shard_counts_hold_the_same_weights(self):
        outputs, inspected = set(), []
        for form in ("hf", "meta"):
            for shards in (1, 2):
                model = self.make(f"{form}{shards}", "--format", form, "--shards", shards)
                report = self.done("inspect", model, "--stats", "--json").json
                self.assertTrue(report["sound"], report)
                self.assertEqual((report["layers"], report["dim"], report["hidden"], report["shards"]),
                                 (2, DIM, HIDDEN, shards))
                self.assertEqual(len(report["tensors"]), 8)
                self.assertEqual(report["layer_compact_bytes"], report["layer_bf16_bytes"] * 3 // 4)
                inspected.append([(s["layer"], s["role"], s["min"], s["max"], s["rms"], s["nan"]) for s in report["stats"]])
                outputs.add(self.output_of(model).tobytes())
                self.assertTrue(self.done("verify", model, "--json").json["pass"])
        self.assertEqual(len(outputs), 1)
        self.assertTrue(all(stats == inspected[0] for stats in inspected))

    def test_what_was_written_is_what_runs(self):
        model = self.make("m", "--dtype", "bf16", "--seed", 7)
        tensors = read_safetensors(model / "model.safetensors")
        layer = {role: from_bf16(tensors[name.format(1)][1]).astype(np.float64).reshape(tensors[name.format(1)][1].shape)
                 for role, name in HF_NAMES.items()}
        self.assertEqual(layer["down"].shape, (DIM, HIDDEN))
        h = self.x.astype(np.float64)
        right = feed_forward(normalised(h, layer), layer)
        self.assertLess(relative(self.output_of(model) - h, right), 6e-3)
        self.assertLess(relative(self.output_of(model, 1, "--compute", "f32") - h, right), 2e-6)

    def test_storages_give_the_same_bits(self):
        run = ("run", self.folder / "f32", "--layer", 0, "--input", self.input, "-o", self.folder / "y.npy")
        for dtype in ("bf16", "f32"):
            model = self.make(dtype, "--dtype", dtype)
            for compute in ("f32", "bf16"):
                outputs = {self.output_of(model, 1, "--compute", compute, "--storage", storage).tobytes()
                           for storage in ("automatic", "plain", "compact")}
                self.assertEqual(len(outputs), 1, (dtype, compute))
        self.assertRegex(self.done(*run).err, r"plain f32 \(\d+.* bits a weight, ")
        self.assertRegex(self.done(*run, "--storage", "compact").err, "plain f32")  # only bf16 has another
        self.assertIsNone(self.done("inspect", self.folder / "f32", "--json").json["layer_compact_bytes"])
        self.assertNotIn("compact", self.done("inspect", self.folder / "f32").out)
        self.assertRegex(self.done("inspect", self.folder / "bf16").out, r"compact +about \d")

    def test_seeds_and_types(self):
        digests = {}
        for dtype in ("f32", "bf16", "f16", "f64"):
            for seed in (1, 2):
                model = self.make(f"{dtype}{seed}", "--dtype", dtype, "--seed", seed)
                digests[dtype, seed] = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
                self.done("verify", model, "--layer", 0)
        self.assertEqual(len(set(digests.values())), len(digests))
        again = self.make("again", "--dtype", "f32")
        self.assertEqual(hashlib.sha256((again / "model.safetensors").read_bytes()).hexdigest(), digests["f32", 1])

    def test_meta_types(self):
        for dtype in ("f32", "f16", "f64"):
            model = self.make(f"meta_{dtype}", "--dtype", dtype, "--format", "meta", "--shards", 4)
            hf = self.make(f"hf_{dtype}", "--dtype", dtype)
            self.assertEqual(self.output_of(model).tobytes(), self.output_of(hf).tobytes())

    def test_a_preset_has_its_shape_and_name(self):
        model = self.folder / "m"
        self.done("synth", "--preset", "Llama-3.2-1B", "--layers", 1, "--format", "meta", "-o", model)
        report = self.done("inspect", model, "--json").json
        self.assertEqual((report["dim"], report["hidden"], report["layers"]), (2048, 8192, 1))
        self.assertIn("llama-3.2-1b", report["presets"])
        self.assertIn("llama-3.2-1b", self.done("inspect", model).out)

    def test_synth_says_what_comes_next(self):
        text = self.done("synth", "--dim", 8, "--hidden", 16, "-o", self.folder / "m").out
        self.assertIn("swiglu inspect", text)

    def test_odd_shapes(self):
        for dim, hidden in ((1, 1), (7, 33), (65, 31), (513, 97)):
            with self.subTest(dim=dim, hidden=hidden):
                model = self.folder / f"m{dim}"
                self.done("synth", "--dim", dim, "--hidden", hidden, "--dtype", "f32", "-o", model)
                self.done("verify", model)

    def test_a_folder_that_holds_a_checkpoint_is_left_alone(self):
        model = self.make("m")
        before = {p.name: p.read_bytes() for p in model.iterdir()}
        self.refused(2, [model.name], "synth", "--dim", 8, "--hidden", 8, "-o", model)
        self.assertEqual({p.name: p.read_bytes() for p in model.iterdir()}, before)

    def test_shards_must_divide(self):
        self.refused(2, ["7", str(HIDDEN)], "synth", "--dim", DIM, "--hidden", HIDDEN, "--format", "meta", "--shards", 7,
                     "-o", self.folder / "m")

    def test_no_room(self):
        outcome = self.refused(4, [], "synth", "--dim", 64, "--hidden", 256, "-o", self.folder / "m", "--dtype", "f32",
                               file_size_limit=50_000)
        self.assertFalse((self.folder / "m").exists() and list((self.folder / "m").iterdir()), outcome.err)
        self.refused(4, ["free"], "synth", "--preset", "llama-3.1-405b", "--layers", 100_000, "-o", self.folder / "big")
        self.assertFalse((self.folder / "big").exists())


if __name__ == "__main__":
    unittest.main()
