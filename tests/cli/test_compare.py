"""`compare`: the same weights in every form are the same, and each fault made on purpose is named, and no other."""
import copy
import itertools
import shutil
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


def blocks(matrix, order, axis=0):
    parts = np.split(matrix, len(order), axis)
    return np.concatenate([parts[i] for i in order], axis)


def units(layer, order, roles=WEIGHTS):
    """Hidden units in another order, in some of the matrices."""
    for role in roles:
        layer[role] = layer[role][:, order] if role == "down" else layer[role][order]


def shards(layer, order, roles=WEIGHTS):
    for role in roles:
        layer[role] = blocks(layer[role], order, 1 if role == "down" else 0)


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


class Causes(CompareTest):
    def test_gate_and_up_swapped(self):
        def swap(layer):
            layer["gate"], layer["up"] = layer["up"], layer["gate"]
        for dtypes in (("F32", "F32"), ("BF16", "BF16"), ("F32", "BF16")):
            good = layers_of()
            bad = copy.deepcopy(good)
            swap(bad[1])
            a, b = self.write("a", good, dtypes[0]), self.write("b", bad, dtypes[1])
            causes = [{c["kind"]: c["matrices"] for c in l["causes"]} for l in self.json(a, b, 1)["layers"]]
            self.assertEqual(causes, [{}, {"gate_up_swapped": ["gate", "up"]}, {}])
        text = self.compare(a, b, 1).out
        self.assertIn("✗ layer 1, gate and up: gate and up are swapped: B's gate is A's up, B's up is A's gate. Exchange ", text)

    def test_one_of_them_twice(self):
        def twice(layer):
            layer["up"] = layer["gate"]
        self.fault(twice, {"matrix_repeated": ["up"]})

    def test_fused_matrix_split_wrongly(self):
        def interleaved(layer):
            fused = np.stack([layer["gate"], layer["up"]], 1).reshape(2 * HIDDEN, DIM)
            layer["gate"], layer["up"] = fused[:HIDDEN], fused[HIDDEN:]
        self.fault(interleaved, {"gate_up_rows_mixed": ["gate", "up"]})

    def test_transposed(self):
        for role in WEIGHTS:
            def transpose(layer):
                layer[role] = layer[role].T.copy()
            self.fault(transpose, {"transposed": [role]}, layers=layers_of(dim=32, hidden=32))

    def test_hidden_units_permuted(self):
        order = np.random.default_rng(4).permutation(HIDDEN)
        found = self.fault(lambda layer: units(layer, order), {"hidden_units_permuted": WEIGHTS})
        self.assertTrue(found["causes"][0]["same_function"])
        self.assertLess(max(o["largest_difference_per_rms"] for o in found["outputs"]), 1e-5)
        for roles in (["gate"], ["down"], ["gate", "up"], ["up", "down"]):
            found = self.fault(lambda layer: units(layer, order, roles),
                               {"hidden_units_permuted_inconsistently": roles})
            self.assertFalse(found["causes"][0]["same_function"])
        def apart(layer):
            units(layer, order, ["gate", "up"])
            units(layer, order[::-1], ["down"])
        found = self.fault(apart, {"hidden_units_permuted_inconsistently": WEIGHTS})
        self.assertIn("in other orders, not in one", found["causes"][0]["text"])

    def test_hidden_units_permuted_and_rounded(self):
        good = layers_of()
        bad = copy.deepcopy(good)
        for layer in bad:
            units(layer, np.random.default_rng(4).permutation(HIDDEN))
        a, b = self.write("a", good), self.write("b", bad, "BF16")
        for layer in self.json(a, b, 1)["layers"]:
            self.assertEqual([c["kind"] for c in layer["causes"]], ["hidden_units_permuted"])
        self.assertIn("✗ layers 0-2, gate, up and down: the hidden units are in another order, the same in gate, up",
                      self.compare(a, b, 1).out)

    def test_shards_exchanged(self):
        for order in ([1, 0], [0, 2, 1, 3], [7, 0, 1, 2, 3, 4, 5, 6], [*range(14), 15, 14]):
            found = self.fault(lambda layer: shards(layer, order), {"shards_exchanged": WEIGHTS})
            self.assertTrue(found["causes"][0]["same_function"])
            self.assertIn(f"{len(order)} shards of A in the order {', '.join(map(str, order))}", found["causes"][0]["text"])
            for roles in (["gate"], ["down"], ["gate", "up"]):
                found = self.fault(lambda layer: shards(layer, order, roles), {"shards_exchanged_inconsistently": roles})
                self.assertFalse(found["causes"][0]["same_function"])

    def test_shards_repeated(self):
        for order, missing in (([0, 0], "1 is missing"), ([0, 1, 1, 3], "2 is missing"), ([0, 1, 2, 3, 4, 5, 6, 0], "7 is missing")):
            for roles in (WEIGHTS, ["up"], ["down"]):
                found = self.fault(lambda layer: shards(layer, order, roles), {"shard_repeated": roles})
                self.assertIn(missing, found["causes"][0]["text"])
                self.assertIn("write B anew", found["causes"][0]["advice"])
        def in_itself(layer):  # the half that is there twice is not A's either
            layer["gate"][:HIDDEN // 2] += 1
            shards(layer, [0, 0], ["gate"])
        found = self.fault(in_itself, {"shard_repeated": ["gate"]})
        self.assertIn("shard 1 of 2 of B repeats its shard 0", found["causes"][0]["text"])

    def test_shards_missing_or_joined_too_often(self):
        good = layers_of()
        for ways, part in ((2, 0), (2, 1), (4, 2)):
            bad = copy.deepcopy(good)
            for layer in bad:
                shards(layer, list(range(ways)))
                for role in WEIGHTS:
                    layer[role] = np.split(layer[role], ways, 1 if role == "down" else 0)[part]
            a, b = self.write("a", good), self.write("b", bad)
            for left, right, short in ((a, b, "B"), (b, a, "A")):
                report = self.json(left, right, 1)
                self.assertIn("hidden", report["differences"][0])
                for layer in report["layers"]:
                    self.assertEqual({c["kind"]: c["matrices"] for c in layer["causes"]}, {"shard_missing": WEIGHTS})
                    self.assertIn(f"{short} holds shard {part} of {ways} of", layer["causes"][0]["text"])
                    self.assertEqual(layer["matrices"]["norm"]["match"], "same_bits")
                    self.assertEqual(len(layer["outputs"]), 2)
        bad = copy.deepcopy(good)
        for layer in bad:
            for role in WEIGHTS:
                layer[role] = np.concatenate([layer[role]] * 2, 1 if role == "down" else 0)
        report = self.json(a, self.write("b", bad), 1)
        self.assertEqual([c["kind"] for c in report["layers"][0]["causes"]], ["shards_repeated"])
        for hidden, words in ((HIDDEN // 2, "as if shards were missing"), (HIDDEN - 1, "matrices of other models")):
            report = self.json(a, self.write("b", layers_of(seed=5, hidden=hidden)), 1)
            self.assertEqual([c["kind"] for c in report["layers"][0]["causes"]], ["unknown"])
            self.assertIn(words, report["layers"][0]["causes"][0]["text"] + report["layers"][0]["causes"][-1]["text"])

    def test_norm_plus_one(self):
        def gemma(layer):
            layer["norm"] = layer["norm"] - 1
        for dtype in ("F32", "BF16"):
            found = self.fault(gemma, {"norm_plus_one": ["norm"]}, dtype)
            self.assertIn("B holds w of a norm that multiplies by 1 + w", found["causes"][0]["text"])

    def test_another_layer(self):
        good = layers_of(layers=4)
        def other(layer):
            layer.update(good[3])
        found = self.fault(other, {"other_layer": ["norm", *WEIGHTS]}, layers=good)
        self.assertEqual(found["causes"][0]["text"], "B's layer 1 holds A's layer 3")
        def one_matrix(layer):
            layer["down"] = good[0]["down"]
        found = self.fault(one_matrix, {"other_layer": ["down"]}, "BF16", layers=good)
        self.assertEqual(found["causes"][0]["text"], "B's layer 1 holds A's layer 0")
        a, b = self.write("a", good), self.write("b", [good[1], good[2], good[3], good[3]])
        self.assertIn("✗ layers 0-2, norm, gate, up and down: B holds what A holds 1 layer later.", self.compare(a, b, 1).out)
        packed = self.folder / "a.swiglu"
        self.done("pack", a, "-o", packed)
        kinds = [[c["kind"] for c in l["causes"]] for l in self.json(packed, b, 1)["layers"]]
        self.assertEqual(kinds, [["other_layer"]] * 3 + [[]])

    def test_constant_factors(self):
        for factor, dtype in itertools.product((2, 0.013, -1), ("F32", "BF16")):
            def scale(layer):
                for role in ("norm", "down"):
                    layer[role] = layer[role] * np.float32(factor)
            kind = "sign_flipped" if factor == -1 else "constant_factor"
            found = self.fault(scale, {kind: ["norm", "down"]}, dtype)
            if factor == 2:
                self.assertIn("every element of B is 2 times that of A", found["causes"][0]["text"])

    def test_factors_of_rows_and_columns(self):
        rng = np.random.default_rng(6)
        factors = rng.uniform(0.5, 2, HIDDEN).astype(np.float32)
        for dtype in ("F32", "BF16"):
            def rows(layer):
                layer["up"] = layer["up"] * factors[:, None]
            self.fault(rows, {"row_factors": ["up"]}, dtype)
            def columns(layer):
                layer["down"] = layer["down"] * factors
            self.fault(columns, {"column_factors": ["down"]}, dtype)
            def signs(layer):
                layer["gate"] = layer["gate"] * np.sign(factors - 1)[:, None]
            self.fault(signs, {"sign_flipped": ["gate"]}, dtype)

    def test_scales_of_quantised_rows(self):
        good = layers_of()
        good[1]["gate"] *= np.random.default_rng(7).uniform(0.1, 2, (HIDDEN, 1)).astype(np.float32)
        scale = np.abs(good[1]["gate"]).max(1, keepdims=True) / 127
        good[1]["gate"] = np.round(good[1]["gate"] / scale) * scale
        def twice(layer):
            layer["gate"] = layer["gate"] * scale
        self.fault(twice, ({"scale_applied_twice": ["gate"]}, {"row_factors": ["gate"]}), layers=good)
        def without(layer):
            layer["gate"] = layer["gate"] / scale
        self.fault(without, ({"scale_left_out": ["gate"]}, {"row_factors": ["gate"]}), layers=good)

    def test_truncated(self):
        def truncate(layer):
            for role in layer:
                layer[role] = (layer[role].view(np.uint32) & 0xFFFF0000).view(np.float32)
        found = self.fault(truncate, {"truncated_to_bf16": ["norm", *WEIGHTS]})
        self.assertIn("B is A cut off to bf16", found["causes"][0]["text"])

    def test_norm_folded_into_gate_and_up(self):
        def fold(layer):
            for role in ("gate", "up"):
                layer[role] = layer[role] * layer["norm"]
            layer["norm"] = np.ones_like(layer["norm"])
        for dtype in ("F32", "BF16"):
            found = self.fault(fold, {"norm_folded": ["norm", "gate", "up"]}, dtype)
            self.assertTrue(found["causes"][0]["same_function"])
            self.assertLess(max(o["largest_difference_per_rms"] for o in found["outputs"]), 1e-5 if dtype == "F32" else 0.1)
        def half(layer):  # gate alone is another function
            layer["gate"] = layer["gate"] * layer["norm"]
            layer["norm"] = np.ones_like(layer["norm"])
        self.fault(half, {"column_factors": ["gate"], "unknown": ["norm"]})

    def test_a_piece_that_was_never_written(self):
        def zeros(layer):
            layer["down"][:, HIDDEN // 2:] = 0
        found = self.fault(zeros, {"zeros": ["down"]})
        self.assertIn("elements of B are 0 where A has others", found["causes"][0]["text"])

    def test_several_causes_in_one_layer(self):
        def both(layer):
            layer["norm"] = layer["norm"] + 1
            layer["gate"], layer["up"] = layer["up"], layer["gate"]
            layer["down"] = layer["down"] * 3
        self.fault(both, {"gate_up_swapped": ["gate", "up"], "norm_plus_one": ["norm"], "constant_factor": ["down"]})
        def part(layer):
            layer["gate"], layer["up"] = layer["up"], layer["gate"]
            layer["down"] = layer["down"] + 1
        self.fault(part, {"gate_up_swapped": ["gate", "up"], "unknown": ["down"]})


class MetaShards(CompareTest):
    def setUp(self):
        super().setUp()
        self.good = self.folder / "good"
        self.done("synth", "--dim", DIM, "--hidden", HIDDEN, "--layers", 2, "--format", "meta", "--shards", 4, "-o", self.good)

    def spoiled(self):
        shutil.copytree(self.good, self.folder / "bad")
        return self.folder / "bad", [self.folder / "bad" / f"consolidated.{i:02}.pth" for i in range(4)]

    def kinds(self, bad, *flags):
        return [{c["kind"]: c["text"] for c in l["causes"]} for l in self.json(self.good, bad, 1, *flags)["layers"]]

    def test_renamed(self):
        bad, files = self.spoiled()
        files[1].rename(bad / "kept")
        files[2].rename(files[1])
        (bad / "kept").rename(files[2])
        for causes in self.kinds(bad):
            self.assertEqual(list(causes), ["shards_exchanged"])
            self.assertIn("in the order 0, 2, 1, 3", causes["shards_exchanged"])

    def test_copied(self):
        bad, files = self.spoiled()
        shutil.copy(files[0], files[3])
        for causes in self.kinds(bad):
            self.assertEqual(list(causes), ["shard_repeated"])
            self.assertIn("made of shards 0, 1, 2, 0 of A's 4: 3 is missing", causes["shard_repeated"])

    def test_missing(self):
        bad, files = self.spoiled()
        files[3].unlink()
        files[2].unlink()
        self.refused(3, [HIDDEN // 2], "compare", self.good, bad)
        for causes in self.kinds(bad, "--hidden", HIDDEN // 2):
            self.assertEqual(list(causes), ["shard_missing"])
        shutil.copy(self.good / "consolidated.02.pth", bad)
        for causes in self.kinds(bad, "--hidden", HIDDEN * 3 // 4):
            self.assertEqual(list(causes), ["shard_missing"])
            self.assertIn("the last 16 are missing", causes["shard_missing"])


if __name__ == "__main__":
    unittest.main()
