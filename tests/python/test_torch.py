"""swiglu.torch on real torch and transformers: tensors of every kind, the module, patching models and undoing it, and
the example with a trained model. Skips where torch cannot be imported."""
import copy
import gc
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(print(f"skipped: {error}") or 77)

import swiglu
import swiglu.torch
import test_swiglu

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("SWIGLU_TEST_DATA", "../shared/data"))
MODEL = DATA / "derived" / "stories260K" / "full_hf_f32"
TOKENIZER = DATA / "llama2c" / "tok512.bin"
needs_data = unittest.skipUnless(MODEL.is_dir(), "SWIGLU_TEST_DATA is missing")
DIM, HIDDEN = 32, 80
torch.set_num_threads(1)  # of two tests on two cores each waits for threads of the other
torch.manual_seed(1)


def weights(dtype=torch.float32):
    return [(torch.randn(shape) / 6).to(dtype) for shape in ((HIDDEN, DIM), (HIDDEN, DIM), (DIM, HIDDEN))]


def mlp(x, gate, up, down):
    linear = torch.nn.functional.linear
    return linear(torch.nn.functional.silu(linear(x, gate)) * linear(x, up), down)


def small_model(kind, **more):
    """A random model of a family: two layers, no download."""
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=DIM, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


class Test(test_swiglu.Test):
    def setUp(self):
        grad = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        self.addCleanup(torch.set_grad_enabled, grad)

    def close(self, found, expected, limit):
        self.assertEqual(found.dtype, expected.dtype)
        self.assertLess(float((found.double() - expected.double()).norm() / expected.double().norm()), limit)


class Tensors(Test):
    def test_every_type_without_a_copy(self):
        for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 2e-2)):
            gate, up, down = weights(dtype)
            ours = swiglu.torch.SwiGLU(gate, up, down)
            x = torch.randn(2, 5, DIM).to(dtype)
            # Against torch's own arithmetic in double: a bound of the type's rounding, of x and of the result.
            self.close(ours(x), mlp(x.double(), gate.double(), up.double(), down.double()).to(dtype), limit)
            out = torch.empty(2, 5, DIM, dtype=dtype)
            self.assertEqual(ours.layer.forward(x, out).data_ptr(), out.data_ptr())
            self.assertTrue(torch.equal(out, ours(x)))
            self.assertEqual(ours.layer.compute, "bf16" if dtype == torch.bfloat16 else "f32")

    def test_torch_and_numpy_give_the_same_bits(self):
        ws = weights()
        x = torch.randn(7, DIM)
        found = swiglu.FeedForward.from_weights(*(w.numpy() for w in ws)).forward(x.numpy())
        self.assertTrue(torch.equal(torch.from_numpy(found), swiglu.torch.SwiGLU(*ws)(x)))

    def test_strides(self):
        ours = swiglu.torch.SwiGLU(*weights())
        x = torch.randn(6, 4, DIM)
        expected = ours(x)
        self.assertTrue(torch.equal(ours(x[:, 1:]), expected[:, 1:]))
        self.assertTrue(torch.equal(ours(x.transpose(0, 1)), expected.transpose(0, 1)))
        self.assertTrue(torch.equal(ours(x[0, 0].expand(3, DIM)), expected[0, 0].expand(3, DIM)))
        self.assertEqual(ours(x[:0]).shape, (0, 4, DIM))
        self.refuses("usage", "side by side", ours, torch.randn(DIM, 6).T)

    def test_a_weight_that_is_collected(self):
        ours = swiglu.torch.SwiGLU(*weights())
        x = torch.randn(3, DIM)
        expected = ours(x)
        gc.collect()
        rubbish = [torch.full_like(w, 9) for w in weights()]
        self.assertTrue(torch.equal(ours(x), expected))
        del rubbish

    def test_refusals(self):
        ours = swiglu.torch.SwiGLU(*weights())
        x = torch.randn(3, DIM)
        self.refuses("usage", "x: CPU meta", ours, x.to("meta"))
        self.refuses("usage", "int64", ours, torch.ones(3, DIM, dtype=torch.int64))
        self.refuses("usage", "dense sparse", ours, x.to_sparse())
        self.refuses("usage", "resolve_neg", ours, torch.complex(x, x).conj().imag)
        self.refuses("shape", f"[..., {DIM}]", ours, torch.randn(3, DIM + 1))
        self.refuses("usage", "gate: CPU", swiglu.torch.SwiGLU, *[w.to("meta") for w in weights()])
        self.refuses("usage", "norm", ours.block, x)
        with torch.enable_grad():
            self.refuses("usage", "x: gradient no_grad detach", ours, x.clone().requires_grad_())
            self.assertEqual(ours(x).shape, x.shape)
        self.assertEqual(ours(x.clone().requires_grad_()).shape, x.shape)  # nobody asks for gradients here

    def test_torch_knows_what_was_written(self):
        ours, x = swiglu.torch.SwiGLU(*weights()), torch.randn(3, DIM)
        with torch.enable_grad():
            product = (x * torch.ones(DIM, requires_grad=True)).sum()
        ours.layer.forward(x, x)
        self.assertRaisesRegex(RuntimeError, "modified by an inplace operation", product.backward)
        with torch.inference_mode():
            expected = ours(x)
            there = x.clone()
            self.assertTrue(torch.equal(ours.layer.forward(there, there), expected))

    def test_what_would_go_unseen(self):
        ours, x = swiglu.torch.SwiGLU(*weights()), torch.randn(3, DIM)
        with torch.autograd.forward_ad.dual_level():
            self.refuses("usage", "x: gradient", ours, torch.autograd.forward_ad.make_dual(x, x))
            self.assertEqual(ours(x).shape, x.shape)
        self.refuses("usage", "x: torch.jit.trace", torch.jit.trace, ours, x)
        self.refuses("usage", "x: nested", ours, torch.nested.nested_tensor([x, x]))

    def test_a_tensor_on_another_device(self):
        if not torch.cuda.is_available():
            self.skipTest("no CUDA device; the refusal of tensors on `meta` is the same line")
        self.refuses("usage", "x: CPU cuda", swiglu.torch.SwiGLU(*weights()), torch.randn(3, DIM, device="cuda"))

    def test_dlpack(self):
        class Foreign:
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **named):
                return self.tensor.__dlpack__(**named)

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()

        ws = weights(torch.bfloat16)
        x = torch.randn(4, DIM).bfloat16()
        layer = swiglu.FeedForward.from_weights(*map(Foreign, ws))
        out = torch.empty_like(x)
        layer.forward(Foreign(x), Foreign(out))
        self.assertTrue(torch.equal(out, swiglu.torch.SwiGLU(*ws)(x)))
        self.refuses("usage", "out bf16", layer.forward, Foreign(x))


class Module(Test):
    def test_has_no_parameters_and_says_so(self):
        ours = swiglu.torch.SwiGLU(*weights())
        self.assertEqual(list(ours.parameters()), [])
        self.assertIn(f"hidden {HIDDEN}", repr(ours))
        self.refuses("unsupported", "undo", torch.nn.Sequential(ours).state_dict)
        self.assertTrue(torch.equal(copy.deepcopy(ours)(torch.ones(1, DIM)), ours(torch.ones(1, DIM))))

    def test_inside_a_compiled_function(self):
        ours = swiglu.torch.SwiGLU(*weights())
        x = torch.randn(3, DIM)
        compiled = torch.compile(lambda x: ours(x + 1) * 2, backend="eager")
        self.assertTrue(torch.equal(compiled(x), ours(x + 1) * 2))

    def test_block_is_norm_and_residual(self):
        ws, norm = weights(), 1 + torch.arange(DIM) / DIM
        h = torch.randn(5, DIM)
        ours = swiglu.torch.SwiGLU(*ws, norm=norm, eps=1e-6)
        n = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6) * norm
        self.close(ours.block(h), h + mlp(n, *ws), 1e-5)


class Patching(Test):
    def logits(self, model):
        return model(torch.tensor([[1, 5, 9, 60, 2, 7]])).logits

    def test_every_family(self):
        for kind in ("Llama", "Mistral", "Qwen2", "Qwen3", "Phi3"):
            model = small_model(kind)
            own = self.logits(model)
            originals = [layer.mlp for layer in model.model.layers]
            patched = swiglu.torch.patch(model)
            self.assertEqual(patched.names, ["model.layers.0.mlp", "model.layers.1.mlp"], kind)
            self.assertTrue(all(type(layer.mlp) is swiglu.torch.SwiGLU for layer in model.model.layers))
            self.close(self.logits(model), own, 1e-5)
            self.refuses("unsupported", "undo", model.state_dict)
            self.refuses("usage", "already", swiglu.torch.patch, model)
            patched.undo()
            patched.undo()
            self.assertTrue(all(a is b.mlp for a, b in zip(originals, model.model.layers)), kind)
            self.assertTrue(torch.equal(self.logits(model), own))
            self.assertEqual(len([k for k in model.state_dict() if "mlp" in k]), 4 if kind == "Phi3" else 6)

    def test_norm_and_residual(self):
        for kind in ("Llama", "Mistral", "Qwen2", "Qwen3"):
            model = small_model(kind)
            for layer in model.model.layers:
                layer.post_attention_layernorm.weight.data.uniform_(0.5, 1.5)
            own = self.logits(model)
            with swiglu.torch.patch(model, fuse=True):
                blocks = []
                for layer in model.model.layers:
                    real = layer.mlp.block
                    layer.mlp.block = lambda h, real=real: blocks.append(1) or real(h)
                self.close(self.logits(model), own, 1e-5)
                self.assertEqual(len(blocks), 2, kind)
            self.assertTrue(torch.equal(self.logits(model), own))
            self.assertNotIn("forward", model.model.layers[0].__dict__)
        self.refuses("unsupported", "Phi3DecoderLayer fuse", swiglu.torch.patch, small_model("Phi3"), fuse=True)

    def test_a_decoder_layer_that_is_not_plain(self):
        model = small_model("Llama")
        kind = type(model.model.layers[0])
        own = kind.forward
        self.addCleanup(setattr, kind, "forward", own)
        kind.forward = lambda self, hidden_states, **named: own(self, hidden_states, **named) * 2
        self.refuses("unsupported", "LlamaDecoderLayer plain", swiglu.torch.patch, model, fuse=True)
        self.assertEqual(swiglu.torch.patch(model).names[0], "model.layers.0.mlp")

    def test_types(self):
        model = small_model("Llama").to(torch.bfloat16)
        own = self.logits(model)
        with swiglu.torch.patch(model, storage="compact") as patched:
            # Two layers of bf16 arithmetic, rounded in other places.
            self.close(self.logits(model), own, 3e-2)
            self.assertEqual(model.model.layers[0].mlp.layer.storage[0], "compact bf16")
            self.assertIn("2 modules", repr(patched))

    def test_without_keeping(self):
        model = small_model("Llama")
        own = self.logits(model)
        mlps = [layer.mlp for layer in model.model.layers]
        patched = swiglu.torch.patch(model, keep=False)
        self.close(self.logits(model), own, 1e-5)
        self.assertEqual(sum(p.numel() for m in mlps for p in m.parameters()), 0)
        self.refuses("usage", "kept", patched.undo)

    def test_refuses_by_name_and_touches_nothing(self):
        gemma = small_model("Gemma", head_dim=8)
        self.refuses("unsupported", "model.layers.0.mlp GemmaMLP (and 1 more)", swiglu.torch.patch, gemma)
        self.refuses("unsupported", "Mixtral", swiglu.torch.patch, small_model("Mixtral", num_local_experts=2))
        self.refuses("unsupported", "SiLU", swiglu.torch.patch, small_model("Llama", hidden_act="gelu"))
        self.refuses("unsupported", "bias", swiglu.torch.patch, small_model("Llama", mlp_bias=True))
        self.refuses("unsupported", "Linear no feed-forward", swiglu.torch.patch, torch.nn.Linear(2, 2))
        model = small_model("Llama")
        self.refuses("usage", "alone", swiglu.torch.patch, model.model.layers[0].mlp)
        model.model.layers[1].mlp.up_proj = torch.nn.Bilinear(2, 2, 2)
        self.refuses("unsupported", "model.layers.1.mlp Bilinear", swiglu.torch.patch, model)
        self.assertEqual(type(model.model.layers[0].mlp).__name__, "LlamaMLP")
        model = small_model("Llama")
        model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
        self.refuses("unsupported", "hooks", swiglu.torch.patch, model)
        model = small_model("Llama")
        model.model.layers[1].mlp.act_fn.forward = torch.relu
        self.refuses("unsupported", "hooks", swiglu.torch.patch, model)
        self.refuses("usage", "storage", swiglu.torch.patch, small_model("Llama"), storage="tiny")

    def test_leaves_what_it_is_told_to(self):
        model = small_model("Llama")
        model.vision = torch.nn.Module()
        model.vision.mlp = type("VisionMLP", (torch.nn.Module,), {})()
        self.refuses("unsupported", "vision.mlp VisionMLP leave", swiglu.torch.patch, model)
        self.assertEqual(len(swiglu.torch.patch(model, leave=("VisionMLP",)).names), 2)

    def test_a_module_in_two_places_is_packed_once(self):
        model = small_model("Llama")
        model.model.layers[1].mlp = model.model.layers[0].mlp
        own = self.logits(model)
        with swiglu.torch.patch(model):
            self.assertIs(model.model.layers[1].mlp, model.model.layers[0].mlp)
            self.close(self.logits(model), own, 1e-5)
        self.assertIs(model.model.layers[1].mlp, model.model.layers[0].mlp)

    def test_a_module_in_two_places_has_two_norms(self):
        model = small_model("Llama")
        first, second = model.model.layers
        second.mlp = first.mlp
        second.post_attention_layernorm.weight.data.fill_(3)
        own = self.logits(model)
        with swiglu.torch.patch(model, fuse=True):
            self.close(self.logits(model), own, 1e-5)

    def test_a_layer_in_two_places(self):
        model = small_model("Llama")
        model.config.use_cache = False  # whose layers are told apart by their number
        model.model.layers[1] = model.model.layers[0]
        own = self.logits(model)
        patched = swiglu.torch.patch(model, fuse=True)
        self.close(self.logits(model), own, 1e-5)
        patched.undo()
        self.assertTrue(torch.equal(self.logits(model), own))

    def test_a_deep_copy_of_a_fused_model_is_its_own(self):
        model = small_model("Llama")
        patched = swiglu.torch.patch(model, fuse=True)
        twin = copy.deepcopy(model)
        twin.model.layers[0].self_attn.o_proj.weight.data.zero_()
        found = self.logits(twin)
        patched.undo()
        model.model.layers[0].self_attn.o_proj.weight.data.zero_()
        self.close(found, self.logits(model), 1e-5)

    def test_gives_up_no_weights_that_others_use(self):
        model = small_model("Llama")
        first, second = (layer.mlp for layer in model.model.layers)
        second.gate_proj.weight = first.gate_proj.weight
        own = self.logits(model)
        swiglu.torch.patch(model, keep=False)
        self.close(self.logits(model), own, 1e-5)
        self.assertEqual(sum(p.numel() for p in (*first.parameters(), *second.parameters())), 0)

    def test_a_norm_with_a_forward_of_its_own(self):
        model = small_model("Llama")
        model.model.layers[1].post_attention_layernorm.forward = lambda x: x * 2
        self.refuses("unsupported", "model.layers.1 norm", swiglu.torch.patch, model, fuse=True)
        model.model.layers[1].post_attention_layernorm = torch.nn.RMSNorm(DIM)
        self.refuses("unsupported", "RMSNorm expected LlamaRMSNorm", swiglu.torch.patch, model, fuse=True)

    def test_a_failure_half_way_leaves_the_model_as_it_was(self):
        model = small_model("Llama")
        model.model.layers[1].mlp.down_proj.weight.data = torch.zeros(DIM, HIDDEN - 1)
        for fuse in (False, True):
            self.refuses("shape", "down", swiglu.torch.patch, model, fuse=fuse)
            self.assertEqual(type(model.model.layers[0].mlp).__name__, "LlamaMLP")
            self.assertNotIn("forward", model.model.layers[0].__dict__)
            self.assertNotIn("forward", model.model.layers[0].__dict__)

    def test_gradients_are_refused_in_a_model(self):
        model = small_model("Llama")
        with swiglu.torch.patch(model), torch.enable_grad():
            self.refuses("usage", "gradient", self.logits, model)


@needs_data
class Example(Test):
    def run_it(self, *arguments):
        done = subprocess.run([sys.executable, ROOT / "examples" / "generate.py", MODEL, "--threads", "1", *arguments],
                              capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_the_same_story(self):
        done = self.run_it("--tokenizer", TOKENIZER, "--tokens", "150")
        self.assertTrue(done.stdout.startswith("Once upon a time, there was a little girl named Lily."), done.stdout)
        self.assertIn("the same: 151 tokens", done.stderr)
        self.assertLess(float(re.search(r"logits +(\S+) apart", done.stderr)[1]), 1e-5)
        self.assertRegex(done.stderr, r"speed .* tokens/s with torch's MLP, .* with swiglu's")

    def test_the_readme(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "Llama-3.2-1B").symlink_to(MODEL.resolve())
            done = subprocess.run([sys.executable, "-c", test_swiglu.readme(1)], cwd=folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("tensor([[  1, 403, 407,", done.stdout)

    def test_the_page_on_python(self):
        block = re.search(r"^```python\n(.*?)^```$", (ROOT / "docs" / "python.md").read_text(), re.M | re.S)[1]
        block = block.replace("11008", "88").replace("4096", "32")
        done = subprocess.run([sys.executable, "-c", "import torch, swiglu\n" + block + "assert cache[:, 1].any() and not cache[:, 0].any()"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_fused_and_as_ids(self):
        fused = self.run_it("--tokens", "60", "--fuse")
        self.assertIn("the same: 61 tokens", fused.stderr)
        self.assertEqual(fused.stdout.split()[:2], ["1", "403"])

    def test_the_story_program_says_the_same(self):
        program = os.environ.get("SWIGLU_STORY", "")
        if not pathlib.Path(program).is_file():
            self.skipTest("SWIGLU_STORY, the program built from examples/story.cpp, is missing")
        ids = self.run_it("--tokens", "200").stdout.split()
        done = subprocess.run([program, MODEL], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        words = done.stdout.split()
        words = words if words[:1] == ids[:1] else ["1", *words]
        self.assertEqual(words[:len(ids)], ids[:len(words)])
        self.assertGreater(len(words), 190)


if __name__ == "__main__":
    unittest.main(verbosity=2)
