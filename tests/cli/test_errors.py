"""Everything that is wrong ends in one line, the right exit code, and no output file."""
import json
import os
import shutil
import struct
import unittest

import numpy as np

from support import (DATA, DIM, HF_NAMES, STORIES, CommandTest, bf16_npy_bytes, feed_forward, hf_config, needs_data,
                     normalised, relative, small_layer, swiglu, write_hf)

HTML = b"<!DOCTYPE html><html><head><title>404 Not Found</title></head><body>gone</body></html>\n"
POINTER = (b"version https://git-lfs.github.com/spec/v1\n"
           b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4976698672\n")


class ErrorTest(CommandTest):
    """Models of dim 8 and hidden 20, made by hand; x.npy fits them."""

    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(11)
        self.layers = [small_layer(self.rng), small_layer(self.rng)]
        self.model = write_hf(self.folder / "model", self.layers, hf_config(num_hidden_layers=2))
        self.weights = self.model / "model.safetensors"
        self.x = self.rng.standard_normal((3, 8)).astype(np.float32)
        np.save(self.folder / "x.npy", self.x)
        self.out = self.folder / "y.npy"

    def run_arguments(self, model=None, layer=0, x=None, out=None):
        return ("run", model or self.model, "--layer", layer, "--input", x or self.folder / "x.npy", "-o", out or self.out)

    def run_refused(self, code, words, *flags, file_size_limit=None, **which):
        before = sorted(self.folder.rglob("*"))
        self.refused(code, words, *self.run_arguments(**which), *flags, file_size_limit=file_size_limit)
        self.assertEqual(sorted(self.folder.rglob("*")), before, "something was left behind")

    def config(self, **changes):
        (self.model / "config.json").write_text(json.dumps(hf_config(num_hidden_layers=2, **changes)))


class Weights(ErrorTest):
    def test_the_sound_model_runs(self):
        self.done(*self.run_arguments())
        right = self.x + feed_forward(normalised(self.x.astype(float), self.layers[0]), self.layers[0])
        self.assertLess(relative(np.load(self.out), right), 1e-6)

    def test_missing_files(self):
        self.run_refused(3, ["nowhere"], model=self.folder / "nowhere")
        (self.model / "config.json").unlink()
        self.run_refused(3, ["config.json"])
        self.config()
        self.weights.unlink()
        self.run_refused(3, ["model.safetensors"])

    def test_what_is_not_weights(self):
        for words, content in ((["HTML"], HTML), (["LFS"], POINTER), ([], b""), ([], b"abc"), ([], os.urandom(4096)),
                               ([], b"GGUF" + bytes(100)), ([], b"\x7fELF" + bytes(100))):
            with self.subTest(content=content[:16]):
                self.weights.write_bytes(content)
                self.run_refused(3, ["model.safetensors", *words])
                self.run_refused(3, ["model.safetensors", *words], model=self.weights)
                self.refused(3, ["model.safetensors", *words], "inspect", self.weights)

    def test_truncation_at_many_places(self):
        whole = self.weights.read_bytes()
        for keep in (1, 7, 8, 20, 300, len(whole) // 2, len(whole) - 1):
            self.weights.write_bytes(whole[:keep])
            self.run_refused(3, ["model.safetensors"])
        self.weights.write_bytes(whole + b"\0")
        self.run_refused(3, ["model.safetensors"])

    def test_unknown_types(self):
        def rename(header):
            header[HF_NAMES["up"].format(1)]["dtype"] = "FLOAT32"
        write_hf(self.model, self.layers, hf_config(num_hidden_layers=2), change=rename)
        self.run_refused(3, ["model.safetensors", HF_NAMES["up"].format(1), "FLOAT32"])
        def integers(header):
            header[HF_NAMES["up"].format(1)]["dtype"] = "I32"
        write_hf(self.model, self.layers, hf_config(num_hidden_layers=2), change=integers)
        self.run_refused(3, [HF_NAMES["up"].format(1), "I32"], layer=1)

    def test_wrong_shapes(self):
        name = HF_NAMES["gate"].format(0)
        for shape in ([8, 20], [160], [1, 20, 8], [20, 8, 1]):
            def reshape(header):
                header[name]["shape"] = shape
            with self.subTest(shape=shape):
                write_hf(self.model, self.layers, hf_config(num_hidden_layers=2), change=reshape)
                self.run_refused(3, [name])

    def test_a_width_that_the_configuration_contradicts(self):
        self.config(intermediate_size=24)
        self.run_refused(3, ["20", "24"])
        outcome = swiglu("inspect", self.model)
        self.assertEqual(outcome.code, 1, outcome.err)
        self.assertIn("24", outcome.out)
        report = swiglu("inspect", self.model, "--json").json
        self.assertFalse(report["sound"])
        self.assertTrue(any("24" in p and "20" in p for p in report["problems"]), report)
        self.done(*self.run_arguments(), "--hidden", 20)
        self.out.unlink()
        self.run_refused(3, ["24", "20"], "--hidden", 24)
        self.config(hidden_size=16)
        self.run_refused(3, ["16", "8"])

    def test_a_layer_that_is_incomplete(self):
        def lose(header):
            header["other"] = header.pop(HF_NAMES["down"].format(1))
        write_hf(self.model, self.layers, hf_config(num_hidden_layers=2), change=lose)
        self.run_refused(3, ["layers.1.mlp.down_proj.weight"], layer=1)
        self.assertEqual(swiglu("inspect", self.model).code, 1)

    def test_layers_out_of_range(self):
        for layer in (2, 2**62):
            self.run_refused(2, [layer, "2"], layer=layer)
            self.refused(2, [layer], "verify", self.model, "--layer", layer)

    def test_families_that_compute_something_else_are_refused_by_name(self):
        for name, changes in {
            "gemma2": {"hidden_act": "gelu_pytorch_tanh"}, "llama4": {"num_local_experts": 8},
            "granitemoe": {"num_local_experts": 40}, "phi4mm": {}, "olmo2": {}, "deepseek_v3": {"n_routed_experts": 256},
            "stablelm": {}, "minicpm": {"scale_depth": 1.4}, "mamba": {},
        }.items():
            with self.subTest(family=name):
                self.config(model_type=name, **changes)
                self.run_refused(3, [name])
                self.refused(3, [name], "inspect", self.model)
        for key, value in (("hidden_act", "gelu"), ("mlp_bias", True), ("residual_multiplier", 0.22),
                           ("quantization_config", {"quant_method": "gptq"})):
            with self.subTest(key=key):
                self.config(**{key: value})
                self.run_refused(3, [key])
        for name in ("mistral", "qwen2", "qwen3", "llama"):
            self.config(model_type=name)
            self.done(*self.run_arguments())

    def test_eps_is_never_guessed_beside_a_configuration(self):
        for value in ("1e-5", 0, -1, None):
            self.config(rms_norm_eps=value)
            self.run_refused(3, ["rms_norm_eps"])
        self.done(*self.run_arguments(), "--eps", "1e-5")

    def test_a_changed_weight_in_a_pth_is_found_by_its_checksum(self):
        folder = self.folder / "meta"
        self.done("synth", "--dim", "64", "--hidden", "96", "--layers", "1", "--format", "meta", "--dtype", "f32",
                  "-o", folder)
        self.done("inspect", folder, "--stats")
        shard = folder / "consolidated.00.pth"
        good = shard.read_bytes()
        middle = len(good) // 2  # among the weights
        shard.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1:])
        self.done("inspect", folder)  # opening does not read the weights
        outcome = swiglu("inspect", folder, "--stats")
        self.assertEqual(outcome.code, 1)
        self.assertIn("consolidated.00.pth", outcome.out)
        self.assertIn("/data/", outcome.out)

    def test_nan_and_inf_are_reported_and_computed(self):
        spoilt = [dict(layer) for layer in self.layers]
        spoilt[1]["gate"] = spoilt[1]["gate"].copy()
        spoilt[1]["gate"][3, 2] = np.nan
        spoilt[1]["up"] = spoilt[1]["up"].copy()
        spoilt[1]["up"][4, :2] = np.inf
        spoilt[0]["down"] = spoilt[0]["down"].copy()
        spoilt[0]["down"][5, 7] = np.inf
        write_hf(self.model, spoilt, hf_config(num_hidden_layers=2))
        self.done("inspect", self.model)
        text = self.done("inspect", self.model, "--stats").out
        for words in ("layer 1 gate: 1 of 160 weights", "layer 1 up: 2 of 160 weights", "layer 0 down: 1 of 160"):
            self.assertIn(words, text)
        report = self.done("inspect", self.model, "--stats", "--json").json
        counts = {(s["layer"], s["role"]): (s["nan"], s["inf"]) for s in report["stats"]}
        self.assertEqual((counts[1, "gate"], counts[1, "up"], counts[0, "down"]), ((1, 0), (0, 2), (0, 1)))
        self.assertTrue(report["sound"])
        self.done(*self.run_arguments(layer=1))
        self.assertTrue(np.isnan(np.load(self.out)).all())  # every output sums over the spoilt row
        self.assertEqual(set(np.load(self.out).view(np.uint32).ravel()), {0x7FC00000})
        self.done(*self.run_arguments(layer=0))
        y = np.load(self.out)
        self.assertFalse(np.isfinite(y[:, 5]).any())
        others = [i for i in range(8) if i != 5]
        clean = self.x + feed_forward(normalised(self.x.astype(float), self.layers[0]), self.layers[0])
        self.assertLess(relative(y[:, others], clean[:, others]), 1e-6)
        for layer in (0, 1):
            verified = self.done("verify", self.model, "--layer", layer)
            self.assertIn("NaN or Inf took no part", verified.out)

    def test_a_file_without_feed_forward_is_sound(self):
        header = json.dumps({"other": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        path = self.folder / "other.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
        self.assertIn("no feed-forward", self.done("inspect", path).out)
        self.assertEqual(self.done("inspect", path, "--json").json["layers"], 0)
        self.run_refused(2, ["0"], model=path)

    def test_names_from_files_cannot_move_the_cursor(self):
        def paint(header):
            header["\x1b[2J\nmodel"] = header.pop(HF_NAMES["down"].format(1))
        write_hf(self.model, self.layers, hf_config(num_hidden_layers=2), change=paint)
        outcome = swiglu("inspect", self.model)
        self.assertNotIn("\x1b", outcome.out + outcome.err)
        self.run_refused(3, ["layers.1.mlp.down_proj.weight"], layer=1)


class InputAndOutput(ErrorTest):
    def test_inputs_that_do_not_fit(self):  # N44
        path = self.folder / "bad.npy"
        for shape, words in (((3, 7), ["7", "8"]), ((8, 3), ["3", "8"]), ((2, 3, 9), ["9", "8"]), ((9,), ["9", "8"]),
                             ((1, 1, 1, 8), ["[1, 1, 1, 8]"]), ((), ["[]"])):
            np.save(path, np.zeros(shape, np.float32))
            self.run_refused(3, ["bad.npy", *words], x=path)
            self.refused(3, ["bad.npy", *words], "verify", self.model, "--input", path)

    def test_a_single_axis_is_one_token(self):  # N45
        path = self.folder / "one.npy"
        np.save(path, self.x[0])
        self.done(*self.run_arguments(x=path))
        self.assertEqual(np.load(self.out).shape, (8,))

    def test_inputs_that_are_not_arrays_of_numbers(self):
        path = self.folder / "bad.npy"
        self.run_refused(3, ["bad.npy"], x=path)
        good = (self.folder / "x.npy").read_bytes()
        for content in (b"", b"hello", HTML, good[:20], good[:-1], good + b"\0"):
            path.write_bytes(content)
            self.run_refused(3, ["bad.npy"], x=path)
        for array in (np.zeros((3, 8), np.int32), np.zeros((3, 8), np.complex64), np.zeros((3, 8), bool),
                      np.array([{"a": 1}], object)):
            np.save(path, array)
            self.run_refused(3, ["bad.npy"], x=path)
        np.save(path, np.zeros((3, 8), np.uint16))
        self.run_refused(3, ["bad.npy", "bf16"], x=path)
        path.write_bytes(bf16_npy_bytes((3, 8), np.zeros((3, 8))))
        self.done(*self.run_arguments(x=path))

    def test_the_input_is_checked_before_the_model_is_opened(self):
        self.run_refused(3, ["none.npy"], x=self.folder / "none.npy", model=self.folder / "nowhere")

    def test_outputs_that_cannot_be_written(self):
        self.run_refused(4, ["nowhere"], out=self.folder / "nowhere" / "y.npy")
        self.run_refused(4, ["x.npy"], out=self.folder / "x.npy" / "y.npy")
        self.run_refused(4, [self.model.name], out=self.model)
        self.run_refused(4, [], out=f"{self.model}/")
        self.run_refused(4, ["/dev/null", "regular"], out="/dev/null")
        self.assertTrue(os.path.exists("/dev/null") and not os.path.isfile("/dev/null"))

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_read_only_folder(self):
        closed = self.folder / "closed"
        closed.mkdir(mode=0o500)
        self.run_refused(4, ["closed"], out=closed / "y.npy")

    def test_a_full_disk_leaves_the_old_output(self):
        self.out.write_bytes(b"what was there before")
        self.run_refused(4, ["y.npy"], file_size_limit=64)
        self.assertEqual(self.out.read_bytes(), b"what was there before")
        self.out.unlink()
        self.run_refused(4, ["y.npy"], file_size_limit=64)

    def test_an_output_that_is_there_is_replaced(self):
        self.out.write_bytes(b"old")
        self.done(*self.run_arguments())
        self.assertEqual(np.load(self.out).shape, (3, 8))
        # ... also when it is the input.
        self.done(*self.run_arguments(out=self.folder / "x.npy"))
        self.assertEqual((self.folder / "x.npy").read_bytes(), self.out.read_bytes())

    def test_an_isa_this_machine_lacks_is_usage(self):
        outcome = swiglu(*self.run_arguments(), env={"SWIGLU_ISA": "neon"})
        self.assertEqual(outcome.code, 2)
        self.assertEqual(outcome.err.count("\n"), 1)
        self.assertFalse(self.out.exists())


@needs_data
class RealFiles(CommandTest):
    def copy(self, name):
        shutil.copytree(STORIES / name, self.folder / name)
        for path in (self.folder / name).iterdir():
            path.chmod(0o644)
        return self.folder / name

    def refuse(self, code, words, model, *flags):
        self.refused(code, words, "run", model, "--layer", 0, "--input", STORIES / "x.npy", "-o", self.folder / "y", *flags)
        self.assertFalse((self.folder / "y").exists())

    def test_missing_shards(self):
        model = self.copy("hf_bf16_sharded")
        (model / "model-00002-of-00002.safetensors").unlink()
        self.refuse(3, ["model-00002-of-00002.safetensors"], model)
        for gone in ("consolidated.00.pth", "consolidated.01.pth"):
            model = self.copy("meta_mp2_bf16_shared")
            (model / gone).unlink()
            self.refuse(3, [], model)
            shutil.rmtree(model)

    def test_a_missing_last_shard_looks_like_half_the_width(self):
        model = self.copy("meta_mp2_bf16_shared")
        (model / "consolidated.01.pth").unlink()
        self.refuse(3, ["172", "86"], model)

    def test_shards_that_disagree(self):
        model = self.copy("meta_mp2_bf16_shared")
        shutil.copy(STORIES / "meta_mp1_f32" / "consolidated.00.pth", model / "consolidated.01.pth")
        self.refuse(3, ["consolidated.0"], model)
        model = self.copy("hf_bf16_sharded")
        index = json.loads((model / "model.safetensors.index.json").read_text())
        index["weight_map"] = {k: "model-00001-of-00002.safetensors" for k in index["weight_map"]}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        self.refuse(3, ["model-00001-of-00002.safetensors"], model)
        index["weight_map"] = {k: "../" + v for k, v in index["weight_map"].items()}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        self.refuse(3, ["model.safetensors.index.json", "../"], model)

    def test_truncated_and_foreign_pth(self):
        model = self.copy("meta_mp1_f32")
        weights = model / "consolidated.00.pth"
        whole = weights.read_bytes()
        for keep in (0, 3, 100, len(whole) // 2, len(whole) - 1):
            weights.write_bytes(whole[:keep])
            self.refuse(3, ["consolidated.00.pth"], model)
        for words, content in ((["HTML"], HTML), (["LFS"], POINTER)):
            weights.write_bytes(content)
            self.refuse(3, ["consolidated.00.pth", *words], model)

    def test_params_that_contradict(self):
        model = self.copy("meta_mp1_f32")
        params = json.loads((model / "params.json").read_text())
        for changes, words in (({"multiple_of": 256}, ["172", "256"]), ({"dim": 128}, ["64"]), ({"n_layers": 6}, ["5"])):
            (model / "params.json").write_text(json.dumps({**params, **changes}))
            self.refuse(3, words, model)
            self.assertEqual(swiglu("inspect", model).code, 1, changes)
        (model / "params.json").write_text("{")
        self.refuse(3, ["params.json"], model)

    HEADERS_ONLY = ("9d48b3393ad2e938fd5de747723bb7d684193592", "e05007331db1d247640b402ea31c675556372c2b")

    def test_malformed_files_are_refused(self):
        count = 0
        for path in sorted((DATA / "malformed").rglob("*")):
            if path.is_file() and path.suffix != ".tsv":
                with self.subTest(path=path.name):
                    count += 1
                    if path.name in self.HEADERS_ONLY:
                        self.assertIn("no feed-forward", self.done("inspect", path).out)
                        continue
                    self.refused(3, [path.name], "inspect", path)
                    self.refuse(3, [path.name], path)
        self.assertGreaterEqual(count, 40)

    def test_inputs_of_other_makers(self):
        for path in sorted((DATA / "npy").rglob("*.npy")):
            with self.subTest(path=path.name):
                self.refused(3, [path.name], "run", STORIES / "hf_f32", "--layer", 0, "--input", path, "-o",
                             self.folder / "y.npy")


if __name__ == "__main__":
    unittest.main()
