"""`compare` names the cause of every fault that is made on purpose here, on the side that has it, and no other."""
import copy
import itertools
import shutil
import unittest

import numpy as np

from test_compare import DIM, HIDDEN, WEIGHTS, CompareTest, layers_of


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
