"""Writes the committed seeds of the fuzz targets, tests/fuzz/corpus/TARGET/*: small sound files that reach far
into each reader. What fuzzing finds is added beside them by hand."""
import io
import json
import pathlib
import pickle
import struct
import zipfile

import numpy

corpus = pathlib.Path(__file__).parent / "corpus"


def put(target, name, data):
    (corpus / target).mkdir(parents=True, exist_ok=True)
    (corpus / target / name).write_bytes(data if isinstance(data, bytes) else data.encode())


# safetensors: whole files, and headers alone, which the target puts before 64 bytes of data.
def header(entries, metadata=None):
    out, at = ({"__metadata__": metadata} if metadata is not None else {}), 0
    for name, dtype, shape, size in entries:
        out[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return json.dumps(out, separators=(",", ":")), at


for name, entries, metadata in [
        ("layer", [("model.layers.0.mlp.gate_proj.weight", "F32", [2, 2], 16),
                   ("model.layers.0.mlp.up_proj.weight", "F32", [2, 2], 16),
                   ("model.layers.0.mlp.down_proj.weight", "F32", [2, 2], 16),
                   ("model.layers.0.post_attention_layernorm.weight", "F64", [2], 16)], {"format": "pt"}),
        ("types", [("a", "BF16", [1, 2, 3], 12), ("b", "F16", [], 2), ("c", "F8_E4M3", [2, 4], 8), ("d", "F4", [2], 1),
                   ("e", "F6_E2M3", [4], 3), ("f", "I64", [0, 7], 0), ("g", "BOOL", [38], 38)], None),
        ("empty", [], {})]:
    text, size = header(entries, metadata)
    put("safetensors", name + ".header", text)
    put("safetensors", name, struct.pack("<Q", len(text) + 3) + text.encode() + b"  \n" + bytes(range(size)))

# JSON: one of each kind that is read.
config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2, "intermediate_size": 2,
          "num_hidden_layers": 1, "rms_norm_eps": 1e-05, "hidden_act": "silu", "mlp_bias": False,
          "torch_dtype": "bfloat16", "eos_token_id": [1, 2], "tie_word_embeddings": True, "pretraining_tp": 1}
put("json", "config", json.dumps(config))
put("json", "config_nested", json.dumps({"model_type": "mllama", "text_config": config}))
put("json", "config_fp8", json.dumps({**config, "quantization_config": {
    "quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}}))
put("json", "params", json.dumps({"dim": 64, "n_layers": 2, "n_heads": 4, "multiple_of": 4, "ffn_dim_multiplier": 1.3,
                                  "norm_eps": 1e-05, "vocab_size": -1, "rope_theta": 500000.0, "hidden_dim": None}))
put("json", "constants", '\n[NaN, -Infinity, Infinity, -0.0, 1e308, 18446744073709551615, -9223372036854775809, '
    '"\\ud83d\\ude00\\u0000\\n", {"a": {"b": [[[]]]}}]')
put("json", "index", json.dumps({"metadata": {"total_size": 28}, "weight_map": {
    f"model.layers.0.{name}.weight": "a.safetensors" for name in
    ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm")}}))


# Pickles as torch.save writes them: classes of torch are stood in for by names, since nothing is called.
class Global:
    """Pickles as `module.name`, called with `arguments` unless they are None; `key` makes it a storage."""

    def __init__(self, module, name, arguments=None, key=None):
        self.module, self.name, self.arguments, self.key = module, name, arguments, key


class Pickler(pickle._Pickler):  # the one in Python, since its opcodes can be written by hand
    def persistent_id(self, obj):
        if isinstance(obj, Global) and obj.key is not None:
            return ("storage", Global(obj.module, obj.name), *obj.key)
        return None

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Global) and obj.key is None:
            if self.proto >= 4:
                self.save(obj.module), self.save(obj.name), self.write(pickle.STACK_GLOBAL)
            else:
                self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
            if obj.arguments is not None:
                self.save(obj.arguments)
                self.write(pickle.REDUCE)
            return None
        return super().save(obj, save_persistent_id)


def pickled(obj, protocol=2):
    out = io.BytesIO()
    Pickler(out, protocol).dump(obj)
    return out.getvalue()


def storage(kind, key, count, module="torch"):
    return Global(module, kind, key=(key, "cpu", count))


def tensor(store, offset, size, stride, rebuild="_rebuild_tensor_v2", extra=()):
    return Global("torch._utils", rebuild,
                  (store, offset, size, stride, False, Global("collections", "OrderedDict", ()), *extra))


zero, one = storage("FloatStorage", "0", 24), storage("BFloat16Storage", "1", 3)
states = {
    "plain": {"layers.0.feed_forward.w1.weight": tensor(zero, 0, (3, 4), (4, 1)),
              "layers.0.feed_forward.w2.weight": tensor(zero, 12, (4, 3), (1, 4)), "norm": tensor(one, 0, (3,), (1,))},
    "nested": {"model": {"module.a": tensor(zero, 2, (), ()), "b": tensor(zero, 0, (2, 3, 4), (1, 2, 6))},
               "step": 7, "lr": 1e-3, "names": ["a", ("b", None, True)], "big": 1 << 70},
    "ordered": Global("collections", "OrderedDict", ([("p", Global("torch._utils", "_rebuild_parameter", (
        tensor(zero, 0, (5, 0), (1, 9)), True, Global("collections", "OrderedDict", ()))))],)),
    "float8": {"f8": tensor(storage("UntypedStorage", "1", 6, "torch.storage"), 1, (2, 2), (2, 1),
                            "_rebuild_tensor_v3", (Global("torch", "float8_e4m3fn"),))},
}
for name, state in states.items():
    for protocol in (1, 2, 4):
        put("pickle", f"{name}_{protocol}", pickled(state, protocol))


# Zip archives: a checkpoint as torch lays it out, and others that zip tools write.
def archive(entries, comment=b"", method=zipfile.ZIP_STORED, streamed=False):
    class Stream(io.BytesIO):
        def seekable(self):
            return not streamed

        def seek(self, *arguments):
            if streamed:
                raise io.UnsupportedOperation
            return super().seek(*arguments)
    out = Stream()
    with zipfile.ZipFile(out, "w", method) as written:
        written.comment = comment
        for name, data in entries:
            written.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


entries = [("a/data.pkl", pickled(states["plain"])), ("a/byteorder", "little"), ("a/data/0", bytes(96)),
           ("a/data/1", bytes(6)), ("a/version", "3\n")]
put("zip", "checkpoint", archive(entries))
put("zip", "streamed", archive(entries, streamed=True))
put("zip", "comment", archive(entries[:1] + entries[2:], b"a comment"))
put("zip", "deflated", archive(entries, method=zipfile.ZIP_DEFLATED))
put("zip", "empty", archive([]))

# .npy arrays.
for name, array in [("f4", numpy.arange(6, dtype="<f4").reshape(2, 3)), ("f8_big", numpy.arange(4, dtype=">f8")),
                    ("f2_fortran", numpy.asfortranarray(numpy.ones((3, 2, 2), "<f2"))),
                    ("v2", numpy.zeros((2, 2), "V2")), ("u2", numpy.zeros((2, 2), "<u2")), ("scalar", numpy.float32(1)),
                    ("empty", numpy.zeros((0, 4), "<f4")), ("structured", numpy.zeros(2, [("a", "<f4")]))]:
    out = io.BytesIO()
    numpy.lib.format.write_array(out, numpy.asarray(array))
    put("npy", name, out.getvalue())
for version in (1, 2, 3):
    text = b"{\"shape\": (1L, 2 ), 'fortran_order':False,'descr': '<f4'}"
    put("npy", f"short_{version}", b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4,
                                                                                          "little") + text + bytes(8))

# A packed file's header, before which the target puts 16 KiB of zeros (their checksums are XXH3's).
SUMS = {0: "2d06800538d394c2", 8: "c77b3abb6f87acd9", 16: "d0a66a65c7528968"}


def region(offset, size):
    return {"offset": offset, "bytes": size, **({"checksum": SUMS[size]} if size in SUMS else {})}


put("packed", "header", json.dumps({
    "layout": "x86-panel32", "writer": "swiglu 0.1.0", "family": "llama", "model_layers": 2,
    "config": {"dim": 4, "hidden": 6, "eps": 1e-05}, "sources": [{"name": "consolidated.00.pth", "bytes": 1}],
    "layers": [{"number": 1, "compute": "bf16", "norm": region(64, 16),
                "gate_up": {"dtype": "bf16", "storage": "plain", "index": region(128, 0), "payload": region(4096, 192),
                            "checksums": region(4288, 8)},
                "down": {"dtype": "bf16", "storage": "compact", "index": region(4352, 0),
                         "payload": region(8192, 8128), "checksums": region(16320, 8)}}]}))


# GGUF: one layer of some types, one of stacked experts, a part of a split set.
def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(pairs, tensors, version=3, alignment=32):
    kinds = {int: (4, "<I"), float: (6, "<f")}
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    for key, value in pairs.items():
        out += gguf_string(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + gguf_string(value)
        elif isinstance(value, list):
            out += struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
        else:
            kind, form = kinds[type(value)]
            out += struct.pack("<I", kind) + struct.pack(form, value)
    data = b""
    for name, kind, shape, size in tensors:
        data += bytes(-len(data) % alignment)
        out += gguf_string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, len(data))
        data += bytes(i * 37 % 251 for i in range(size))
    return out + bytes(-len(out) % alignment) + data


def gguf_keys(hidden, **more):
    return {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 32,
            "llama.feed_forward_length": hidden, "llama.attention.layer_norm_rms_epsilon": 1e-5, **more}


GGUF_TYPES = {"q4_0": (2, 32, 18), "q8_0": (8, 32, 34), "q2_k": (10, 256, 84), "q6_k": (14, 256, 210),
              "iq4_xs": (23, 256, 136), "mxfp4": (39, 32, 17), "f16": (1, 1, 2)}
for name, (kind, block, size) in GGUF_TYPES.items():
    dim = max(block, 32)
    matrix = dim * 32 // block * size
    down = GGUF_TYPES["mxfp4"]
    put("gguf", name, gguf(gguf_keys(32, **{"llama.embedding_length": dim}), [
        ("blk.0.ffn_norm.weight", 0, [dim], 4 * dim), ("blk.0.ffn_gate.weight", kind, [dim, 32], matrix),
        ("blk.0.ffn_up.weight", kind, [dim, 32], matrix), ("blk.0.ffn_down.weight", down[0], [32, dim], dim * down[2])]))
put("gguf", "experts", gguf(gguf_keys([4], **{"llama.expert_count": 2, "general.alignment": 8}), [
    ("blk.0.ffn_norm.weight", 0, [32], 128), ("blk.0.ffn_gate_inp.weight", 0, [32, 2], 256),
    ("blk.0.ffn_gate_exps.weight", 2, [32, 4, 2], 144), ("blk.0.ffn_up_exps.weight", 8, [32, 4, 2], 272),
    ("blk.0.ffn_down_exps.weight", 30, [4, 32, 2], 512)], version=2, alignment=8))
put("gguf", "split", gguf({"split.no": 0, "split.count": 2, "split.tensors.count": 4, **gguf_keys(4)}, []))
