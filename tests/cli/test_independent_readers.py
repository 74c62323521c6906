"""What synth and convert write, read back by the readers that other people use: the packages safetensors, gguf and torch,
each where it can be imported (`./dev test slow` installs the first two into build/readers)."""
import importlib
import json
import os
import sys
import unittest

READERS = os.environ.get("SWIGLU_READERS", "")  # a Python with those packages
if __name__ == "__main__" and os.path.isfile(READERS) and os.path.realpath(sys.prefix) != os.path.realpath(
        os.path.dirname(os.path.dirname(READERS))):
    os.execv(READERS, [READERS, *sys.argv])

import numpy as np

from support import HF_NAMES, CommandTest, from_bf16, read_safetensors

DIM, HIDDEN, LAYERS = 64, 96, 2


def package(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise unittest.SkipTest(f"the Python package {name} is not installed") from None


class Readers(CommandTest):
    def make(self, dtype):
        """A folder of synth, and its weights as float32 by role and layer."""
        model = self.folder / f"from_{dtype}"
        if not model.exists():
            self.done("synth", "--dim", DIM, "--hidden", HIDDEN, "--layers", LAYERS, "--dtype", dtype, "-o", model)
        tensors = read_safetensors(model / "model.safetensors")
        def floats(name):
            kind, array = tensors[name]
            return from_bf16(array).reshape(array.shape) if kind == "BF16" else array.astype(np.float32)
        return model, {(i, role): floats(name.format(i)) for i in range(LAYERS) for role, name in HF_NAMES.items()}

    def convert(self, model, name, *flags):
        self.done("convert", model, self.folder / name, *flags)
        return self.folder / name

    def test_safetensors(self):
        safe = package("safetensors")
        for dtype in ("f32", "f16"):
            model, right = self.make(dtype)
            meta = self.convert(model, f"m_{dtype}", "--format", "meta", "--shards", 2)
            out = self.convert(meta, f"h_{dtype}", "--format", "hf", "--shards", 3)
            found = {}
            for path in sorted(out.glob("*.safetensors")):
                with safe.safe_open(str(path), framework="np") as file:
                    self.assertEqual(file.metadata(), {"format": "pt", "swiglu.tensors": "feed-forward only"})
                    found.update({name: file.get_tensor(name) for name in file.keys()})
            self.assertEqual(len(found), len(right))
            for (i, role), array in right.items():
                np.testing.assert_array_equal(found[HF_NAMES[role].format(i)], array)

    def test_gguf(self):
        gguf = package("gguf")
        kinds = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
        for dtype, kind in kinds.items():
            model, right = self.make(dtype if dtype[0] != "q" else "f32")
            out = self.convert(model, f"{dtype}.gguf", "--format", "gguf", "--dtype", dtype)
            split = self.convert(model, f"{dtype}_split", "--format", "gguf", "--dtype", dtype, "--shards", 3)
            whole = {t.name: t for t in gguf.GGUFReader(out).tensors}
            parts = {t.name: t for path in sorted(split.glob("*.gguf")) for t in gguf.GGUFReader(path).tensors}
            self.assertEqual(set(whole), set(parts))
            self.assertEqual(len(whole), len(right))
            for (i, role), array in right.items():
                tensor, part = whole[f"blk.{i}.ffn_{role}.weight"], parts[f"blk.{i}.ffn_{role}.weight"]
                self.assertEqual(list(tensor.shape), list(array.shape[::-1]))
                self.assertEqual(tensor.tensor_type.name, "F32" if role == "norm" else kind)
                self.assertEqual(bytes(tensor.data), bytes(part.data))
                # Also its quantizer, written by other people in another language, gives these bytes.
                expected = array if role == "norm" else gguf.quants.quantize(array, tensor.tensor_type)
                self.assertEqual(bytes(tensor.data), expected.tobytes(), (dtype, role))
            fields = {name: field.contents() for name, field in gguf.GGUFReader(out).fields.items()
                      if hasattr(field, "contents")}
            for name, value in {"general.architecture": "llama", "llama.embedding_length": DIM,
                                "llama.feed_forward_length": HIDDEN, "llama.block_count": LAYERS,
                                "swiglu.tensors": "feed-forward only"}.items():
                self.assertEqual(fields.get(name, value), value)

    def test_torch(self):
        torch = package("torch")
        for dtype, kind in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
            model, right = self.make(dtype)
            out = self.convert(model, f"m_{dtype}", "--format", "meta", "--shards", 2)
            shards = [torch.load(out / f"consolidated.0{i}.pth", weights_only=True) for i in range(2)]
            names = {"gate": ("feed_forward.w1", 0), "up": ("feed_forward.w3", 0), "down": ("feed_forward.w2", 1)}
            for (i, role), array in right.items():
                if role == "norm":
                    found = shards[0][f"layers.{i}.ffn_norm.weight"]
                else:
                    name, axis = names[role]
                    found = torch.cat([shard[f"layers.{i}.{name}.weight"] for shard in shards], axis)
                self.assertEqual(found.dtype, kind)
                np.testing.assert_array_equal(found.float().numpy(), array)

    def same(self, model, other, what):
        with self.subTest(what):
            self.assertIn("same bits", self.done("compare", model, other, "--eps", "1e-5").out)

    def test_torch_writes(self):
        """The other way round: what torch.save writes, in all the forms that people have, is read here."""
        torch = package("torch")
        model, right = self.make("f32")
        names = {"gate": "feed_forward.w1", "up": "feed_forward.w3", "down": "feed_forward.w2", "norm": "ffn_norm"}
        state = {f"layers.{i}.{names[role]}.weight": torch.from_numpy(array.copy()) for (i, role), array in right.items()}
        file = self.folder / "file.pth"
        for zipped in (True, False):
            for protocol in (2, 3, 4, 5) if zipped else (1, 2, 3, 4, 5):
                torch.save(state, file, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
                self.same(model, file, f"zip {zipped}, protocol {protocol}")
            flat = torch.cat([tensor.flatten() for tensor in state.values()])
            pieces = torch.split(flat, [tensor.numel() for tensor in state.values()])
            turned = lambda t: t.t().contiguous().t() if t.dim() == 2 else t
            for what, other in {
                "shared storage": {n: p.view(t.shape) for (n, t), p in zip(state.items(), pieces)},
                "transposed": {name: turned(tensor) for name, tensor in state.items()},
                "parameters": {name: torch.nn.Parameter(tensor) for name, tensor in state.items()},
                "nested": {"model": state, "step": 3, "optimizer": {"lr": 1e-3, "betas": (0.9, 0.95)}},
                "module.": {f"module.{name}": tensor for name, tensor in state.items()},
                "_orig_mod.": {f"_orig_mod.{name}": tensor for name, tensor in state.items()},
            }.items():
                torch.save(other, file, _use_new_zipfile_serialization=zipped)
                self.same(model, file, f"zip {zipped}, {what}")

    def test_torch_writes_8_bit_floats(self):
        torch = package("torch")
        model, right = self.make("f32")
        names = {"gate": "feed_forward.w1", "up": "feed_forward.w3", "down": "feed_forward.w2", "norm": "ffn_norm"}
        values, weights, scales = {}, {}, {}
        for (i, role), array in right.items():
            tensor, name = torch.from_numpy(array.copy()), f"layers.{i}.{names[role]}"
            if role == "norm":
                values[f"{name}.weight"] = weights[f"{name}.weight"] = tensor
                continue
            scale = tensor.abs().amax(1, keepdim=True) / 448
            weights[f"{name}.weight"] = (tensor / scale).to(torch.float8_e4m3fn)
            scales[f"{i}_{names[role]}_0"] = scale
            values[f"{name}.weight"] = weights[f"{name}.weight"].float() * scale
        for folder, tensors in (("values", values), ("coded", weights)):
            (self.folder / folder).mkdir()
            torch.save(tensors, self.folder / folder / "consolidated.00.pth")
            (self.folder / folder / "params.json").write_text(
                json.dumps({"dim": DIM, "n_layers": LAYERS, "norm_eps": 1e-5, "hidden_dim": HIDDEN}))
        torch.save(scales, self.folder / "coded" / "fp8_scales_0.pt")
        self.same(self.folder / "values", self.folder / "coded", "8-bit floats")


if __name__ == "__main__":
    unittest.main()
