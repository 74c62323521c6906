"""convert: other formats, shards and types hold the same weights, bit for bit where bits can be kept."""
import json
import os
import subprocess
import unittest

import numpy as np

from support import (BINARY, HF_NAMES, STORIES, CommandTest, bf16_bits, from_bf16, hf_config, needs_data, read_safetensors,
                     write_safetensors)

DIM, HIDDEN, LAYERS = 64, 96, 3
SANITIZED = bool(os.environ.get("SWIGLU_SANITIZE"))


def tensors_of(folder):
    """Name to (type, shape, bytes), over all shards of a Hugging Face folder."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, (dtype, array) in read_safetensors(path).items():
            found[name] = dtype, array.shape, array.tobytes()
    return found


class ConvertTest(CommandTest):
    def make(self, name, *flags, dim=DIM, hidden=HIDDEN, layers=LAYERS):
        self.done("synth", "--dim", dim, "--hidden", hidden, "--layers", layers, "-o", self.folder / name, *flags)
        return self.folder / name

    def convert(self, model, name, form, *flags):
        self.said = self.done("convert", model, self.folder / name, "--format", form, *flags)
        return self.folder / name

    def refused_and_nothing_left(self, code, words, *arguments, **how):
        before = sorted(self.folder.rglob("*"))
        self.refused(code, words, "convert", *arguments, **how)
        self.assertEqual(sorted(self.folder.rglob("*")), before)


class RoundTrips(ConvertTest):
    # Each leg: format, shards, and what the name of OUT ends in.
    LEGS = [("meta", 2, ""), ("hf", 4, ""), ("gguf", 1, ".gguf"), ("meta", 3, ""), ("gguf", 5, ""), ("meta", 1, ""),
            ("packed", 1, ".swiglu"), ("hf", 1, "")]

    def test_any_way_round_keeps_every_bit(self):
        for dtype in ("bf16", "f32", "f16"):
            with self.subTest(dtype=dtype):
                # GGUF and packed files hold norms as f32, whatever they were; that must not show at the end.
                first = self.make(f"{dtype}", "--dtype", dtype)
                right = tensors_of(first)
                model = first
                for i, (form, shards, end) in enumerate(self.LEGS):
                    if form == "packed":
                        self.done("pack", model, "-o", self.folder / f"{dtype}{i}{end}")
                        model = self.folder / f"{dtype}{i}{end}"
                        continue
                    was_packed = model.suffix == ".swiglu"
                    model = self.convert(model, f"{dtype}{i}{end}", form, "--shards", shards)
                    self.assertEqual("packed by" in self.said.err, was_packed, self.said.err)
                    self.done("verify", model, "--layer", 1)
                    if form == "hf":
                        self.assertEqual(tensors_of(model), right)
                report = self.done("inspect", model, "--json").json
                self.assertTrue(report["sound"])
                self.assertEqual((report["layers"], report["dim"], report["hidden"]), (LAYERS, DIM, HIDDEN))
                self.assertEqual(np.float32(report["eps"]), np.float32(1e-5))

    def test_f64_and_its_norms_stay_f64_and_become_f32_in_gguf(self):
        first = self.make("f64", "--dtype", "f64")
        back = self.convert(self.convert(first, "m", "meta", "--shards", 2), "h", "hf", "--shards", 2)
        self.assertEqual(tensors_of(back), tensors_of(first))
        gguf = self.convert(first, "g.gguf", "gguf")
        self.assertIn("f64 is rounded to f32", self.said.err)
        found = tensors_of(self.convert(gguf, "h32", "hf"))
        for name, (kind, array) in read_safetensors(first / "model.safetensors").items():
            self.assertEqual(found[name][2], array.astype("<f4").tobytes(), name)

    def test_mixed_types_stay_as_they_are(self):
        rng = np.random.default_rng(1)
        shapes = {"norm": (8,), "gate": (20, 8), "up": (20, 8), "down": (8, 20)}
        kinds = {"norm": "F64", "gate": "BF16", "up": "F32", "down": "F16"}
        tensors = {}
        for role, shape in shapes.items():
            values = rng.standard_normal(shape)
            tensors[HF_NAMES[role].format(0)] = kinds[role], bf16_bits(values) if role == "gate" else values
        model = self.folder / "mixed"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(hf_config()))
        write_safetensors(model / "model.safetensors", tensors)
        meta = self.convert(model, "m", "meta", "--shards", 4)
        self.done("verify", meta)
        self.assertEqual(tensors_of(self.convert(meta, "h", "hf")), tensors_of(model))

    @needs_data
    def test_a_trained_model_split_by_others(self):
        right = tensors_of(STORIES / "hf_bf16_sharded")
        found = tensors_of(self.convert(STORIES / "meta_mp2_bf16_shared", "h", "hf"))
        self.assertEqual(set(found), set(right))
        for name in right:
            if "layernorm" not in name:
                self.assertEqual(found[name], right[name], name)
        floats = tensors_of(STORIES / "hf_f32")
        self.assertEqual(tensors_of(self.convert(STORIES / "gguf" / "ffn.f32.gguf", "g", "hf")),
                         {name: floats[name] for name in right})

    @needs_data
    def test_blocks_are_decoded_to_f32_and_said_to_be(self):
        mixed = STORIES / "gguf" / "ffn.mixed_q8_0_q4_0_q4_1_q5_0_q5_1.gguf"
        out = self.convert(mixed, "h", "hf", "--layers", "0-1")
        self.assertRegex(self.said.err, "note: weights of type Q4_0, Q8_0 are decoded and written as f32")
        found = tensors_of(out)
        self.assertEqual(found[HF_NAMES["gate"].format(0)][0], "F32")
        self.assertEqual(found[HF_NAMES["down"].format(0)][0], "F16")
        # Quantized again they are the same numbers: decoding loses nothing, and a block's scale survives.
        again = self.convert(self.convert(out, "q.gguf", "gguf", "--dtype", "q8_0", "--layers", "0"), "h2", "hf")
        name = HF_NAMES["gate"].format(0)
        first, second = (np.frombuffer(tensors_of(f)[name][2], "<f4") for f in (out, again))
        self.assertLess(np.abs(first - second).max(), np.abs(first).max() / 127)

    def test_blocks_of_synth_and_of_convert_are_the_same(self):
        floats = self.make("f32", "--dtype", "f32")
        for dtype in ("q8_0", "q4_0"):
            made = self.make(f"s{dtype}.gguf", "--format", "gguf", "--dtype", dtype)
            converted = self.convert(floats, f"c{dtype}.gguf", "gguf", "--dtype", dtype)
            self.assertEqual(self.said.err, "")
            size = made.stat().st_size
            self.assertEqual(made.read_bytes()[-size // 2:], converted.read_bytes()[-size // 2:])
            exact, coarse = tensors_of(floats), tensors_of(self.convert(converted, f"h{dtype}", "hf"))
            for name, (_, _, raw) in exact.items():
                right, found = np.frombuffer(raw, "<f4"), np.frombuffer(coarse[name][2], "<f4")
                error = np.linalg.norm(found - right) / np.linalg.norm(right)
                low, high = (0, 0) if "layernorm" in name else (0.003, 0.008) if dtype == "q8_0" else (0.05, 0.12)
                self.assertTrue(low <= error <= high, (name, error))


class Types(ConvertTest):
    def test_one_rounding_to_nearest_even_and_norms_as_they_are(self):
        model = self.make("m", "--dtype", "f32")
        right = read_safetensors(model / "model.safetensors")
        for dtype, kind in (("bf16", "BF16"), ("f16", "F16"), ("f64", "F64")):
            found = read_safetensors(self.convert(model, dtype, "hf", "--dtype", dtype) / "model.safetensors")
            for name, (_, array) in right.items():
                expected = {"BF16": bf16_bits, "F16": lambda a: a.astype("<f2"), "F64": lambda a: a.astype("<f8")}[kind]
                wanted = ("F32", array) if "layernorm" in name else (kind, expected(array))
                self.assertEqual(found[name][0], wanted[0])
                self.assertEqual(found[name][1].tobytes(), wanted[1].tobytes(), name)
            config = json.loads((self.folder / dtype / "config.json").read_text())
            self.assertEqual(config["torch_dtype"], {"bf16": "bfloat16", "f16": "float16", "f64": "float64"}[dtype])

    def test_what_overflows_is_counted_and_nan_stays(self):
        model = self.make("m", "--dtype", "f32", layers=1)
        tensors = dict(read_safetensors(model / "model.safetensors"))
        gate = tensors[HF_NAMES["gate"].format(0)][1].copy()
        gate[0, :4] = [65520, -1e30, np.nan, np.inf]
        tensors[HF_NAMES["gate"].format(0)] = "F32", gate
        write_safetensors(model / "model.safetensors", tensors)
        out = self.convert(model, "h", "hf", "--dtype", "f16")
        self.assertIn("warning: 2 weights are too large for the type and became Inf", self.said.err)
        row = read_safetensors(out / "model.safetensors")[HF_NAMES["gate"].format(0)][1][0, :4]
        np.testing.assert_array_equal(row, np.array([np.inf, -np.inf, np.nan, np.inf], np.float16))
        self.refused_and_nothing_left(3, ["blk.0.ffn_gate.weight", "row 0", "q8_0"], model, self.folder / "q.gguf",
                                      "--format", "gguf", "--dtype", "q8_0")

    def test_rows_that_are_no_whole_blocks(self):
        model = self.make("m", dim=32, hidden=40)
        self.convert(model, "q.gguf", "gguf", "--dtype", "q4_0")
        self.assertIn("down: rows of 40 elements are no multiple of 32: f16 instead of q4_0", self.said.err)
        types = {t["dtype"] for t in self.done("inspect", self.folder / "q.gguf", "--json").json["tensors"]}
        self.assertEqual(types, {"Q4_0", "F16", "F32"})


class Metadata(ConvertTest):
    def test_config_is_kept_where_its_words_still_hold(self):
        model = self.make("m")
        text = json.dumps(hf_config(hidden_size=DIM, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
                                    model_type="mistral", sliding_window=4096, own={"deep": ["x", 1.50]},
                                    torch_dtype="bfloat16"), indent=1)
        (model / "config.json").write_text(text)
        config = lambda folder: (folder / "config.json").read_text()
        self.assertEqual(config(self.convert(model, "a", "hf", "--shards", 2)), text)
        changed = config(self.convert(model, "b", "hf", "--eps", "1e-3", "--dtype", "f32"))
        self.assertEqual(changed, text.replace("1e-05", "0.001").replace('"bfloat16"', '"float32"'))
        fewer = json.loads(config(self.convert(model, "c", "hf", "--layers", "0-1")))
        self.assertEqual((fewer["num_hidden_layers"], fewer.get("sliding_window")), (2, None))
        (model / "config.json").write_text(text.replace(f": {HIDDEN}", ": 100"))
        self.refused_and_nothing_left(3, ["100", HIDDEN], model, self.folder / "d", "--format", "hf")
        fixed = json.loads(config(self.convert(model, "e", "hf", "--hidden", HIDDEN)))
        self.assertEqual((fixed["intermediate_size"], fixed["own"]), (HIDDEN, {"deep": ["x", 1.5]}))

    def test_params_keep_the_recipe(self):
        params = lambda folder: json.loads((folder / "params.json").read_text())
        model = self.make("m", "--format", "meta")
        text = {"dim": DIM, "n_layers": LAYERS, "multiple_of": 32, "ffn_dim_multiplier": 0.5, "norm_eps": 1e-5, "n_heads": 4}
        (model / "params.json").write_text(json.dumps(text))
        self.assertEqual(params(self.convert(model, "a", "meta", "--shards", 8)), text)
        self.assertEqual(params(self.convert(model, "b", "meta", "--layers", "1-2")), {**text, "n_layers": 2})
        other = params(self.convert(self.convert(model, "c", "hf"), "d", "meta"))
        self.assertEqual((other["hidden_dim"], other["n_layers"]), (HIDDEN, LAYERS))
        published = self.folder / "p"
        self.done("synth", "--preset", "llama-3.2-1b", "--layers", 1, "-o", published)
        found = params(self.convert(published, "q", "meta"))
        self.assertEqual((found["multiple_of"], found["ffn_dim_multiplier"]), (256, 1.5))
        self.assertNotIn("hidden_dim", found)

    def test_layers_are_numbered_anew(self):
        model = self.make("m", layers=9)
        right = tensors_of(model)
        found = tensors_of(self.convert(model, "a", "hf", "--layers", "7,0,3-4"))
        self.assertIn("numbered anew: 0 to 3 are layers 0, 3, 4, 7 of the model", self.said.err)
        self.assertEqual(len(found), 16)
        for new, old in enumerate((0, 3, 4, 7)):
            for name in HF_NAMES.values():
                self.assertEqual(found[name.format(new)], right[name.format(old)])
        self.convert(model, "b", "hf", "--layers", "0-3")
        self.assertEqual(self.said.err, "")
        self.done("pack", model, "--layers", "2,5", "-o", self.folder / "p.swiglu")
        found = tensors_of(self.convert(self.folder / "p.swiglu", "c", "hf"))
        self.assertIn("0 to 1 are layers 2, 5", self.said.err)
        self.assertEqual(found[HF_NAMES["up"].format(1)], right[HF_NAMES["up"].format(5)])


class Refusals(ConvertTest):
    def test_what_is_wrong_is_said_before_anything_is_written(self):
        model, other = self.make("m"), self.make("old")
        (self.folder / "file.gguf").write_bytes(b"old")
        out = self.folder / "o"
        for code, words, arguments in [
            (2, ["7 shards", "1, 2, 3, 4, 6, 8", "48"], [model, out, "--format", "meta", "--shards", 7]),
            (2, ["13 shards for 12"], [model, out, "--format", "hf", "--shards", 13]),
            (2, ["--format"], [model, out]),
            (2, ["hf, meta, gguf", "'pth'"], [model, out, "--format", "pth"]),
            (2, ["q8_0", "'q4_k'"], [model, out, "--format", "gguf", "--dtype", "q4_k"]),
            (2, ["only GGUF", "q8_0"], [model, out, "--format", "hf", "--dtype", "q8_0"]),
            (2, ["layer 3", "0 to 2"], [model, out, "--format", "hf", "--layers", "2-3"]),
            (2, ["old", "already holds a checkpoint"], [model, other, "--format", "hf"]),
            (2, ["file.gguf", "exists"], [model, self.folder / "file.gguf", "--format", "gguf"]),
            (2, ["2 shards", "one file"], [model, self.folder / "n.gguf", "--format", "gguf", "--shards", 2]),
            (2, ["holds a checkpoint"], [model, model, "--format", "hf"]),
            (3, ["nowhere"], [self.folder / "nowhere", out, "--format", "hf"]),
            (4, ["old/config.json"], [model, self.folder / "old/config.json", "--format", "hf"]),
        ]:
            with self.subTest(arguments=arguments):
                self.refused_and_nothing_left(code, words, *arguments)

    def test_a_full_disk_leaves_nothing(self):
        model = self.make("m")
        for form, out in (("hf", "o"), ("meta", "o"), ("gguf", "o.gguf"), ("gguf", "deep/er/o.gguf")):
            self.refused_and_nothing_left(4, ["File too large"], model, self.folder / out, "--format", form,
                                          file_size_limit=20_000)

    def test_a_source_that_is_cut_meanwhile_or_before(self):
        model = self.make("m")
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        self.refused_and_nothing_left(3, ["model.safetensors"], model, self.folder / "o", "--format", "hf")


class Memory(ConvertTest):
    def peak(self, *arguments):
        """Bytes. What this process needs before exec counts too, which is tens of MB."""
        child = subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(child.returncode, 0, arguments)
        return usage.ru_maxrss * 1024

    @unittest.skipIf(SANITIZED, "sanitizers need memory of their own")
    def test_a_few_slices_are_in_memory_whatever_the_layer(self):
        model = self.make("m", "--dtype", "f32", dim=1024, hidden=16384, layers=1)  # 201 MB
        for form, out, *flags in (("meta", "a", "--shards", 4), ("gguf", "b.gguf", "--dtype", "q8_0"), ("hf", "c")):
            self.assertLess(self.peak("convert", model, self.folder / out, "--format", form, *flags), 120e6, form)


if __name__ == "__main__":
    unittest.main()
