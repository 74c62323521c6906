"""What the tests of the command share: running it, and an independent idea of the right answer.

Nothing here uses the library: safetensors files are taken apart and put together by hand, and the
sublayer is computed in float64 with numpy from its formula. Real files are optional; without them
the tests that need them say so in one line and skip.
"""
import json
import os
import pathlib
import resource
import struct
import subprocess
import tempfile
import unittest

import numpy as np

BINARY = os.environ.get("SWIGLU_BIN", "")
DATA = pathlib.Path(os.environ.get("SWIGLU_TEST_DATA", "/nonexistent"))
STORIES = DATA / "derived" / "stories260K"
if not os.path.isfile(BINARY):
    raise SystemExit(f"set SWIGLU_BIN to the swiglu command (found '{BINARY}')")
LAYERS, DIM, HIDDEN, EPS = 5, 64, 172, 1e-5  # of stories260K


def needs_data(test):
    return unittest.skipUnless(STORIES.is_dir(), f"needs the real files: set SWIGLU_TEST_DATA (not at {DATA})")(test)


class Outcome:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)


def swiglu(*arguments, env=None, file_size_limit=None, timeout=240, prefix=()):
    """Runs the command; a file size limit in bytes stands for a full disk; `prefix` is a command that runs it."""
    def limit():
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails with EFBIG
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, file_size_limit))
    environment = {k: v for k, v in os.environ.items() if k not in ("SWIGLU_ISA", "SWIGLU_THREADS")}
    done = subprocess.run([*prefix, BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          env={**environment, **(env or {})},
                          preexec_fn=limit if file_size_limit is not None else None)
    return Outcome(done)


class CommandTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="swiglu-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def done(self, *arguments, **how):
        outcome = swiglu(*arguments, **how)
        self.assertEqual(outcome.code, 0, f"{arguments}: {outcome.err}{outcome.out}")
        return outcome

    def refused(self, code, words, *arguments, **how):
        """Exit code `code`, nothing on stdout, exactly one line on stderr that holds every word."""
        outcome = swiglu(*arguments, **how)
        self.assertEqual(outcome.code, code, f"{arguments}: {outcome.err}{outcome.out}")
        lines = outcome.err.splitlines()
        errors = [line for line in lines if line.startswith("swiglu: error: ")]
        self.assertEqual(len(errors), 1, outcome.err)
        self.assertEqual(lines[-1], errors[0], outcome.err)
        self.assertEqual(outcome.out, "", arguments)
        for word in words:
            self.assertIn(str(word), errors[0])
        return outcome


# ---------------------------------------------------------------------------------------------
# Numbers

def bf16_bits(values):
    """float32 to bf16 patterns, to nearest even; finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (np.asarray(bits).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def read_bf16_npy(path):
    """numpy knows '<V2' as raw bytes only."""
    return from_bf16(np.load(path).view(np.uint16))


def bf16_npy_bytes(shape, bits):
    header = f"{{'descr': '<V2', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + np.asarray(bits, "<u2").tobytes()


def feed_forward(x, layer):
    gate = x @ layer["gate"].T
    with np.errstate(over="ignore"):
        return (gate / (1 + np.exp(-gate)) * (x @ layer["up"].T)) @ layer["down"].T


def normalised(h, layer, eps=EPS):
    return h / np.sqrt(np.mean(h * h, axis=-1, keepdims=True) + eps) * layer["norm"]


def relative(found, right):
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


# ---------------------------------------------------------------------------------------------
# Checkpoints by hand

HF_NAMES = {"norm": "model.layers.{}.post_attention_layernorm.weight", "gate": "model.layers.{}.mlp.gate_proj.weight",
            "up": "model.layers.{}.mlp.up_proj.weight", "down": "model.layers.{}.mlp.down_proj.weight"}
SAFETENSORS_TYPES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BF16": "<u2"}


def read_safetensors(path):
    """Name to (dtype name, array); bf16 as its patterns."""
    raw = path.read_bytes()
    length = struct.unpack_from("<Q", raw)[0]
    found = {}
    for name, entry in json.loads(raw[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = np.frombuffer(raw[8 + length + begin:8 + length + end], SAFETENSORS_TYPES[entry["dtype"]])
            found[name] = entry["dtype"], data.reshape(entry["shape"])
    return found


def write_safetensors(path, tensors, change=lambda header: None):
    """`tensors`: name to (dtype name, array). `change` may spoil the header."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        payload = np.ascontiguousarray(array, SAFETENSORS_TYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def hf_config(**changes):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 20,
              "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "hidden_act": "silu", "mlp_bias": False,
              "torch_dtype": "float32"}
    config.update(changes)
    return {k: v for k, v in config.items() if v is not None}


def small_layer(rng, dim=8, hidden=20):
    return {"norm": 1 + 0.1 * rng.standard_normal(dim), "gate": rng.standard_normal((hidden, dim)),
            "up": rng.standard_normal((hidden, dim)), "down": rng.standard_normal((dim, hidden))}


def write_hf(folder, layers, config=None, dtype="F32", change=lambda header: None):
    """A Hugging Face folder of hand-made layers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config if config is not None else hf_config()))
    tensors = {HF_NAMES[role].format(i): (dtype, matrix) for i, layer in enumerate(layers)
               for role, matrix in layer.items()}
    write_safetensors(folder / "model.safetensors", tensors, change)
    return folder


def trained_layers_f32():
    """stories260K from its llama2.c file, which no reader of the library knows."""
    raw = (DATA / "llama2c" / "stories260K.bin").read_bytes()
    def take(offset, *shape):
        return np.frombuffer(raw, "<f4", LAYERS * int(np.prod(shape)), offset).reshape(LAYERS, *shape).astype(np.float64)
    norm, gate = take(378140, DIM), take(379420, HIDDEN, DIM)
    down, up = take(599580, DIM, HIDDEN), take(819740, HIDDEN, DIM)
    return [{"norm": norm[i], "gate": gate[i], "up": up[i], "down": down[i]} for i in range(LAYERS)]


def trained_layers_bf16():
    folder = STORIES / "hf_bf16_sharded"
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    def take(role, i):
        dtype, bits = tensors[HF_NAMES[role].format(i)]
        assert dtype == "BF16"
        return from_bf16(bits).astype(np.float64).reshape(bits.shape)
    return [{role: take(role, i) for role in HF_NAMES} for i in range(LAYERS)]
