"""Mixtures of experts, fused matrices and quantised files through the command: an expert computes what a dense model
of the same weights computes, bit for bit."""
import unittest

import numpy as np

from support import HF_NAMES, STORIES, CommandTest, hf_config, needs_data, small_layer, write_hf, write_safetensors

EXPERTS = 3


class Experts(CommandTest):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(5)
        norm = small_layer(rng)["norm"]
        self.experts = [{**small_layer(rng), "norm": norm} for _ in range(EXPERTS)]
        self.mixture = self.folder / "mixture"
        self.mixture.mkdir()
        self.write_config(num_local_experts=EXPERTS)
        tensors = {HF_NAMES["norm"].format(0): ("F32", norm),
                   "model.layers.0.block_sparse_moe.gate.weight": ("F32", rng.standard_normal((EXPERTS, 8)))}
        for e, expert in enumerate(self.experts):
            for name, role in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
                tensors[f"model.layers.0.block_sparse_moe.experts.{e}.{name}.weight"] = ("F32", expert[role])
        write_safetensors(self.mixture / "model.safetensors", tensors)
        np.save(self.folder / "x.npy", rng.standard_normal((5, 8)).astype(np.float32))

    def write_config(self, **changes):
        import json
        config = hf_config(model_type="mixtral", architectures=["MixtralForCausalLM"], **changes)
        (self.mixture / "config.json").write_text(json.dumps(config))

    def output(self, model, *flags):
        out = self.folder / "y.npy"
        self.done("run", model, "--layer", 0, "--input", self.folder / "x.npy", "-o", out, *flags)
        return out.read_bytes()

    def test_an_expert_computes_what_a_dense_model_does(self):
        for e, expert in enumerate(self.experts):
            dense = write_hf(self.folder / f"dense{e}", [expert])
            right = self.output(dense)
            self.assertEqual(self.output(self.mixture, "--expert", e), right)
            self.done("pack", self.mixture, "--expert", e, "-o", self.folder / "p.swiglu")
            self.assertEqual(self.output(self.folder / "p.swiglu"), right)
            self.done("verify", self.mixture, "--expert", e)
            self.assertIn("same bits", self.done("compare", self.mixture, dense, "--expert", e).out)
            other = write_hf(self.folder / "other", [self.experts[(e + 1) % EXPERTS]])
            self.assertEqual(self.swiglu_code("compare", self.mixture, other, "--expert", e), 1)
            self.done("convert", self.mixture, self.folder / f"c{e}", "--format", "hf", "--expert", e)
            self.assertEqual(self.output(self.folder / f"c{e}"), right)

    def swiglu_code(self, *arguments):
        from support import swiglu
        return swiglu(*arguments).code

    def test_the_expert_must_be_named(self):
        run = ("run", self.mixture, "--layer", 0, "--input", self.folder / "x.npy", "-o", self.folder / "y.npy")
        self.refused(2, ["expert", "0 to 2", "none"], *run)
        self.refused(2, ["expert", "0 to 2", "3"], *run, "--expert", 3)
        self.refused(2, ["no mixture"], "verify", write_hf(self.folder / "dense", self.experts[:1]), "--expert", 0)
        report = self.done("inspect", self.mixture, "--json").json
        self.assertEqual((report["experts"], report["hidden"], report["sound"]), (EXPERTS, 20, True))
        self.assertEqual(sorted({t["expert"] for t in report["tensors"] if t["expert"] is not None}), [0, 1, 2])
        shown = self.done("inspect", self.mixture, "--stats").out
        self.assertIn("3 in each layer", shown)
        self.assertIn("experts.E.w1.weight", shown)
        self.assertIn("gate of expert 2", shown)

    def test_a_mixture_that_lacks_experts(self):
        self.write_config(num_local_experts=4)
        self.refused(3, ["num_local_experts", "4", "3"], "verify", self.mixture, "--expert", 0)
        outcome = self.swiglu_code("inspect", self.mixture)
        self.assertEqual(outcome, 1)


@needs_data
class Quantised(CommandTest):
    def test_compare_names_the_type(self):
        from support import swiglu
        mixed = STORIES / "gguf" / "ffn.mixed_q8_0_q4_0_q4_1_q5_0_q5_1.gguf"
        for layer, name in enumerate(("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")):
            found = swiglu("compare", STORIES / "hf_f32", mixed, "--layer", layer)
            self.assertEqual(found.code, 1)
            self.assertIn(f"B holds them as {name}", found.out)
        wrong = swiglu("compare", STORIES / "hf_f32", mixed, "--layer", 0, "--json").json
        self.assertIn("quantised", [cause["kind"] for layer in wrong["layers"] for cause in layer["causes"]])


if __name__ == "__main__":
    unittest.main()
