"""`compare`: the same weights in every form are the same, and differences are counted and placed."""
import copy
import itertools
import unittest

import numpy as np

from support import (STORIES, CommandTest, bf16_bits, feed_forward, from_bf16, hf_config, needs_data, normalised,
                     small_layer, swiglu, write_hf)

DIM, HIDDEN, LAYERS = 24, 64, 3
WEIGHTS = ["gate", "up", "down"]


def layers_of(seed=1, dim=DIM, hidden=HIDDEN, layers=LAYERS):
    rng = np.random.default_rng(seed)
    return [{role: matrix.astype(np.float32) for role, matrix in small_layer(rng, dim, hidden).items()}
            for _ in range(layers)]


class CompareTest(CommandTest):
    def write(self, name, layers, dtype="F32", **config):
        hidden, dim = layers[0]["gate"].shape
        config = hf_config(hidden_size=dim, intermediate_size=hidden, num_hidden_layers=len(layers), **config)
        if dtype == "BF16":
            layers = [{role: bf16_bits(m) for role, m in layer.items()} for layer in layers]
        return write_hf(self.folder / name, layers, config, dtype)

    def compare(self, a, b, code, *flags):
        outcome = swiglu("compare", a, b, *flags)
        self.assertEqual(outcome.code, code, f"{outcome.err}{outcome.out}")
        self.assertEqual(outcome.err, "")
        return outcome

    def json(self, a, b, code, *flags):
        report = self.compare(a, b, code, *flags, "--json").json
        self.assertEqual((report["schema_version"], report["command"]), (1, "compare"))
        return report

    def same(self, a, b, match):
        report = self.json(a, b, 0)
        self.assertEqual((report["verdict"], report["differences"]), ("same", []))
        for layer in report["layers"]:
            self.assertEqual(layer["causes"], [])
            self.assertEqual({m["match"] for m in layer["matrices"].values()} - {"same_bits"},
                             set() if match == "same_bits" else {match}, layer)
            self.assertTrue(all(o["same_bits"] for o in layer["outputs"]), layer)
        return report

    def causes(self, a, b, layer=1):
        """{kind: matrices} of one layer; the others are to be the same."""
        report = self.json(a, b, 1)
        self.assertEqual(report["verdict"], "different")
        for other in report["layers"]:
            if other["layer"] != layer:
                self.assertEqual(other["match"], "same_bits", other)
        found = report["layers"][layer]
        if not any(cause["same_function"] for cause in found["causes"]):
            self.assertTrue(all(not o["same_bits"] for o in found["outputs"]), found)
        self.found = found
        return {cause["kind"]: cause["matrices"] for cause in found["causes"]}

    def fault(self, change, expected, dtype="F32", dtype_b=None, layers=None):
        """`change` spoils layer 1 of B; looked at from both sides. `expected`: kind to matrices, or for each side."""
        good = layers or layers_of()
        bad = copy.deepcopy(good)
        change(bad[1])
        a, b = self.write("a", good, dtype), self.write("b", bad, dtype_b or dtype)
        there, back = expected if isinstance(expected, tuple) else (expected, expected)
        self.assertEqual(self.causes(b, a), back)
        self.assertEqual(self.causes(a, b), there)
        return self.found


class Same(CompareTest):
    @needs_data
    def test_every_form_of_a_trained_model(self):
        f32 = [STORIES / "hf_f32", STORIES / "meta_mp1_f32", STORIES / "hf_f32" / "model.safetensors",
               STORIES / "meta_mp1_f32" / "consolidated.00.pth"]
        bf16 = [STORIES / "hf_bf16_sharded", STORIES / "meta_mp2_bf16_shared"]
        for models, compute in ((f32, "f32"), (bf16, "bf16")):
            for storage in ("plain", "compact") if compute == "bf16" else ("plain",):
                packed = self.folder / f"{compute}_{storage}.swiglu"
                self.done("pack", models[0], "-o", packed, "--storage", storage)
                models.append(packed)
        for a, b in [*itertools.permutations(f32, 2), *itertools.permutations(bf16, 2)]:
            with self.subTest(a=a, b=b):
                report = self.json(a, b, 0)
                self.assertEqual((report["verdict"], len(report["layers"])), ("same", 5))
                # A packed file holds every norm as f32; its other weights keep their type.
                self.assertEqual({m["match"] for l in report["layers"] for r, m in l["matrices"].items() if r != "norm"},
                                 {"same_bits"})
                self.assertTrue(all(o["same_bits"] for l in report["layers"] for o in l["outputs"]))
        for a, b in itertools.product(f32, bf16):
            with self.subTest(a=a, b=b):
                report = self.json(a, b, 1)
                self.assertEqual((report["verdict"], report["verdict_text"]),
                                 ("same_after_rounding", "same after rounding to bf16"))
                for layer in report["layers"]:
                    for matrix in layer["matrices"].values():
                        self.assertEqual((matrix["match"], matrix["rounded_to"], matrix["rounded"]),
                                         ("same_after_rounding", "bf16", "b"))
                self.compare(b, a, 0, "--allow-rounding")
        self.assertEqual(self.json(f32[0], STORIES / "meta_strided_f32", 0, "--layer", 0)["verdict"], "same")
        report = self.json(f32[0], STORIES / "meta_strided_f32", 1)
        self.assertEqual((report["differences"], report["layers_only_in_a"]), (["layers 1-4 only in A"], [1, 2, 3, 4]))

    def test_forms_of_a_made_model(self):
        for dtype in ("bf16", "f16", "f32", "f64"):
            models = []
            for form, count in (("hf", 2), ("meta", 1), ("meta", 4)):
                models.append(self.folder / f"{dtype}{form}{count}")
                self.done("synth", "--dim", DIM, "--hidden", HIDDEN, "--layers", 2, "--dtype", dtype, "--format", form,
                          "--shards", count, "-o", models[-1])
            for a, b in itertools.combinations(models, 2):
                self.same(a, b, "same_bits")
            packed = self.folder / f"{dtype}.swiglu"
            self.done("pack", models[0], "-o", packed)
            self.compare(models[1], packed, 0)  # synth's f64 hold floats, which is what packing narrows them to

    def test_values_in_a_wider_type(self):
        layers = [{role: from_bf16(bf16_bits(m)).reshape(m.shape) for role, m in l.items()} for l in layers_of()]
        a, b = self.write("a", layers, "BF16"), self.write("b", layers, "F32")
        self.same(a, b, "same_values")
        self.same(b, a, "same_values")
        self.assertIn("same: all weights have the same values", self.compare(a, b, 0).out)

    def test_equal_layers_take_one_line(self):
        a = self.write("a", layers_of(layers=32))
        text = self.compare(a, a, 0).out
        self.assertRegex(text, r"(?m)^  0-31 +same bits +same bits +same bits +same bits +same bits +✓$")
        self.assertRegex(text, r"✓ same: all weights have the same bits \([\d.]+ m?s\)\n$")
        self.assertLess(text.count("\n"), 10, text)

    def test_nan_and_signs_of_zero_are_values(self):
        layers = layers_of()
        for value in (np.float32(0), np.array([0x7FC00001], np.uint32).view(np.float32)[0]):
            layers[1]["up"][3, 5] = value
            a = self.write("a", layers)
            other = copy.deepcopy(layers)
            other[1]["up"][3, 5] = np.float32(-0.0) if value == 0 else np.float32(np.nan)
            b = self.write("b", other)
            matrix = self.json(a, b, 0)["layers"][1]["matrices"]["up"]
            self.assertEqual((matrix["match"], matrix["differing"]), ("same_values", 0))
            self.assertEqual((matrix["zero_signs_differing"], matrix["nan_bits_differing"]),
                             (1, 0) if value == 0 else (0, 1))
            self.assertRegex(self.compare(a, b, 0).out, "note: layer 1, up: 1 (NaN in both|element \\+0 in one)")
        other[1]["up"][3, 5] = 1  # a NaN beside a number is a difference, and outputs with it
        report = self.json(a, self.write("b", other), 1)["layers"][1]
        self.assertEqual(report["matrices"]["up"]["differing"], 1)
        self.assertEqual([o["largest_difference_per_rms"] for o in report["outputs"]], [None, None])

    def test_rounding_is_to_nearest_even_whatever_the_size(self):
        """Every exponent, ties and denormals; by numpy."""
        rng = np.random.default_rng(2)
        layers = layers_of(layers=1, dim=64, hidden=512)
        bits = rng.integers(0, 1 << 32, (512, 64), np.uint32)
        bits[:64] = bits[:64] & 0xFFFF8000 | 0x8000  # ties in bf16
        bits[64:128] &= 0x807FFFFF  # denormals
        bits[(bits & 0x7F800000) == 0x7F800000] &= 0xBFFFFFFF  # finite
        layers[0]["gate"] = bits.view(np.float32)
        a = self.write("a", layers)
        report = self.json(a, self.write("b", layers, "BF16"), 1)
        self.assertEqual(report["verdict"], "same_after_rounding", report["verdict_text"])
        with np.errstate(over="ignore"):
            halves = [{role: m.astype(np.float16) for role, m in layers[0].items()}]
        b = write_hf(self.folder / "b", halves, hf_config(hidden_size=64, intermediate_size=512), "F16")
        report = self.json(a, b, 1)
        self.assertEqual(report["verdict_text"], "same after rounding to f16")
        halves[0]["gate"][7, 9] = np.nextafter(halves[0]["gate"][7, 9], np.float16(0))
        b = write_hf(self.folder / "b", halves, hf_config(hidden_size=64, intermediate_size=512), "F16")
        self.assertEqual(self.json(a, b, 1, "--allow-rounding")["layers"][0]["matrices"]["gate"]["match"], "different")

    def test_rounded_values_in_the_same_type(self):
        layers = layers_of()
        rounded = copy.deepcopy(layers)
        for role in ("gate", "norm"):
            rounded[2][role] = from_bf16(bf16_bits(layers[2][role])).reshape(layers[2][role].shape)
        a, b = self.write("a", layers), self.write("b", rounded)
        text = self.compare(b, a, 0, "--allow-rounding").out
        self.assertIn("≈ layer 2: A is B rounded to bf16\n", text)
        self.assertIn("✓ same after rounding to bf16", text)
        rounded[2]["gate"][0, 0] = layers[2]["gate"][0, 0]  # all but one element
        self.assertEqual(self.json(a, self.write("b", rounded), 1)["layers"][2]["matrices"]["gate"]["match"], "different")


class Different(CompareTest):
    def test_counts_and_places(self):
        good = layers_of()
        bad = copy.deepcopy(good)
        bad[1]["down"][3, 7] += 1
        bad[1]["down"][5, 0] -= 2
        a, b = self.write("a", good), self.write("b", bad)
        self.assertEqual(self.causes(a, b), {"unknown": ["down"]})
        matrix = self.found["matrices"]["down"]
        self.assertEqual((matrix["differing"], matrix["elements"]), (2, DIM * HIDDEN))
        first = matrix["first_difference"]
        self.assertEqual((first["row"], first["column"], first["a"], first["b"]),
                         (3, 7, float(good[1]["down"][3, 7]), float(bad[1]["down"][3, 7])))
        self.assertAlmostEqual(matrix["relative_error"],
                               np.linalg.norm(bad[1]["down"] - good[1]["down"]) / np.linalg.norm(good[1]["down"]), 6)
        text = self.compare(a, b, 1).out
        self.assertIn("✗ layer 1, down: no known cause explains the difference; all of down but rows 3 to 5 is the same.", text)
        self.assertIn("2 of 1536 elements differ, the first at row 3, column 7: ", text)
        self.assertIn("✗ different: 1 of 3 layers (1): no known cause", text)
        for layer, code in ((0, 0), (1, 1)):
            self.assertEqual(len(self.json(a, b, code, "--layer", layer)["layers"]), 1)

    def test_outputs(self):
        good = layers_of()
        bad = copy.deepcopy(good)
        bad[1]["gate"][4] *= 3
        x = np.random.default_rng(8).standard_normal((3, DIM))
        np.save(self.folder / "x.npy", x)
        outputs = [x + feed_forward(normalised(x, l), l) for l in (good[1], bad[1])]
        expected = np.abs(outputs[1] - outputs[0]).max() / np.sqrt(np.mean(outputs[0]**2))
        report = self.json(self.write("a", good), self.write("b", bad), 1, "--input", self.folder / "x.npy")
        output = report["layers"][1]["outputs"]
        self.assertEqual([o["input"] for o in output], ["x.npy"])
        self.assertAlmostEqual(output[0]["largest_difference_per_rms"] / expected, 1, 4)
        self.assertEqual(report["layers"][1]["compute"], "f32")
        self.assertEqual(self.json(self.write("a", good, "BF16"), self.write("b", bad, "BF16"), 1)["layers"][1]["compute"],
                         "bf16")

    def test_shapes_eps_and_layers_are_said_first(self):
        a = self.write("a", layers_of())
        b = self.write("b", layers_of(layers=4), rms_norm_eps=1e-6)
        report = self.json(a, b, 1)
        self.assertEqual(report["differences"], ["eps 1e-05 in A and 1e-06 in B", "layer 3 only in B"])
        self.assertEqual(self.compare(a, b, 1).out.splitlines()[2], "✗ eps 1e-05 in A and 1e-06 in B")
        same = self.write("b", layers_of(), rms_norm_eps=1e-6)
        report = self.json(a, same, 1)
        self.assertEqual({l["match"] for l in report["layers"]}, {"same_bits"})
        self.assertFalse(any(o["same_bits"] for l in report["layers"] for o in l["outputs"]))
        self.compare(a, same, 0, "--eps", "1e-5")
        bare = same / "model.safetensors"  # it carries no eps
        report = self.json(same, bare, 0)
        self.assertIn("B carries no eps: taken to be A's 1e-06", report["notes"])
        report = self.json(a, self.write("b", layers_of(dim=16)), 1)
        self.assertEqual(report["differences"], ["dim 24 in A and 16 in B"])
        self.assertEqual({(l["match"], len(l["causes"]), len(l["outputs"])) for l in report["layers"]},
                         {("not_compared", 0, 0)})

    def test_usage(self):
        a = self.write("a", layers_of())
        self.refused(2, ["B"], "compare", a)
        self.refused(2, ["layer 3", "0 to 2"], "compare", a, a, "--layer", 3)
        self.refused(3, ["missing"], "compare", a, self.folder / "missing")
        np.save(self.folder / "x.npy", np.zeros((0, DIM), np.float32))
        self.refused(2, ["0 tokens"], "compare", a, a, "--input", self.folder / "x.npy")

    def test_noise_has_no_cause(self):
        rng = np.random.default_rng(3)
        for size, dtype in itertools.product((1e-6, 1e-3, 1e-2, 1), ("F32", "BF16")):
            good = layers_of()
            bad = copy.deepcopy(good)
            for role in bad[1]:
                bad[1][role] *= (1 + size * rng.standard_normal(bad[1][role].shape)).astype(np.float32)
            a, b = self.write("a", good, dtype), self.write("b", bad, dtype)
            report = swiglu("compare", a, b, "--json").json  # the smallest noise is lost in bf16
            for layer in report["layers"]:
                self.assertLessEqual({c["kind"] for c in layer["causes"]}, {"unknown"}, (size, dtype))
            if size > 1e-5:
                self.assertEqual([c["matrices"] for c in report["layers"][1]["causes"]],
                                 [["norm", "gate", "up", "down"]], (size, dtype))
        other = self.write("b", layers_of(seed=9), "BF16")
        for layer in self.json(self.write("a", layers_of(), "BF16"), other, 1)["layers"]:
            self.assertEqual([c["kind"] for c in layer["causes"]], ["unknown"])


if __name__ == "__main__":
    unittest.main()
