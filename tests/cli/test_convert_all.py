"""convert --all: the whole model in other shards, every tensor byte for byte, with what lies beside the weights."""
import json
import struct
import unittest

import numpy as np

from support import STORIES, CommandTest, needs_data, small_layer, write_hf

GGUF_SIZES = {0: 4, 1: 2, 24: 1, 27: 8}  # type number to bytes: F32, F16, I8, I64


def raw_safetensors(path):
    """Name to (dtype name, shape, bytes), and the metadata; any type."""
    raw = path.read_bytes()
    length = struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__", None)
    data = raw[8 + length:]
    for name, entry in header.items():
        item = {"F32": 4, "I64": 8}.get(entry["dtype"], 1)
        assert (8 + length + entry["data_offsets"][0]) % item == 0, name
    return {n: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for n, e in header.items()}, metadata


def raw_folder(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors, _ = raw_safetensors(path)
        assert not set(tensors) & set(found)
        found.update(tensors)
    return found


def add_tensors(path, extra, metadata):
    """Puts tensors of any type into a safetensors file."""
    tensors = {**raw_safetensors(path)[0], **extra}
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, payload) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return tensors


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf_bytes(pairs, tensors, alignment=32):
    """`pairs`: key to the bytes of type and value; `tensors`: name to (type number, dimensions, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(text(key) + value for key, value in pairs.items())
    data = b""
    for name, (kind, dims, payload) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += payload + b"\0" * (-len(payload) % alignment)
    return head + b"\0" * (-len(head) % alignment) + data


def read_gguf(path):
    """The same, out of a file: only the types of value that these tests write."""
    raw = path.read_bytes()
    version, tensors, pairs = struct.unpack_from("<IQQ", raw, 4)
    assert raw[:4] == b"GGUF" and version == 3
    at = 24

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return value[0] if len(value) == 1 else value

    def string():
        nonlocal at
        size = take("Q")
        at += size
        return raw[at - size:at].decode()
    found_pairs, infos, alignment = {}, {}, 32
    for _ in range(pairs):
        key, begin = string(), at
        kind = take("I")
        if kind == 8:
            string()
        elif kind == 9:
            assert take("I") == 8
            for _ in range(take("Q")):
                string()
        else:
            value = take({2: "H", 4: "I", 5: "i", 6: "f"}[kind])
            alignment = value if key == "general.alignment" else alignment
        found_pairs[key] = raw[begin:at]
    for _ in range(tensors):
        name = string()
        dims = [take("Q") for _ in range(take("I"))]
        infos[name] = dims, take("I"), take("Q")
    start = -(-at // alignment) * alignment
    found = {}
    for name, (dims, kind, offset) in infos.items():
        assert offset % alignment == 0
        size = int(np.prod(dims)) * GGUF_SIZES[kind]
        assert start + offset + size <= len(raw)
        found[name] = kind, dims, raw[start + offset:start + offset + size]
    return found_pairs, found


class CopyTest(CommandTest):
    def copy(self, model, name, form, *flags):
        self.said = self.done("convert", model, self.folder / name, "--format", form, "--all", *flags)
        return self.folder / name

    def refused_and_nothing_left(self, code, words, *arguments, **how):
        before = sorted(self.folder.rglob("*"))
        self.refused(code, words, "convert", *arguments, "--all", **how)
        self.assertEqual(sorted(self.folder.rglob("*")), before)


class HuggingFace(CopyTest):
    EXTRA = {"model.embed_tokens.weight": ("F32", [3, 8], bytes(range(96))),
             "aaa.odd": ("F8_E4M3", [5], b"\x01\x02\x03\x04\x05"),
             "zähler \"q\"": ("I64", [], b"\xff" * 8), "empty": ("I64", [0, 4], b""),
             "model.layers.0.self_attn.q_proj.weight": ("U8", [3, 1, 2], b"abcdef")}
    METADATA = {"format": "pt", "by": "a\"b\\c\n"}

    def model(self):
        folder = write_hf(self.folder / "model", [small_layer(np.random.default_rng(1))])
        tensors = add_tensors(folder / "model.safetensors", self.EXTRA, self.METADATA)
        (folder / "tokenizer.json").write_bytes(b"{\"a\": 1}\n\0\xff")
        (folder / "README.md").write_text("words")
        (folder / "pytorch_model.bin").write_text("other weights")
        (folder / "old.safetensors.index.json").write_text("{}")
        (folder / "original").mkdir()
        (folder / "original" / "x").write_text("in a folder")
        return folder, {n: (d, s, bytes(p)) for n, (d, s, p) in tensors.items()}

    def test_any_shards_hold_every_tensor_and_the_files_beside(self):
        model, right = self.model()
        for shards in (1, 3, len(right)):
            with self.subTest(shards=shards):
                out = self.copy(model, f"s{shards}", "hf", "--shards", shards)
                self.assertEqual(raw_folder(out), right)
                weights = sorted(path.name for path in out.glob("*.safetensors"))
                self.assertEqual(len(weights), shards)
                for name in weights:
                    self.assertEqual(raw_safetensors(out / name)[1], self.METADATA)
                others = {path.name for path in out.iterdir()} - set(weights) - {"model.safetensors.index.json"}
                self.assertEqual(others, {"config.json", "tokenizer.json", "README.md"})
                for name in others:
                    self.assertEqual((out / name).read_bytes(), (model / name).read_bytes())
                self.assertEqual((out / "model.safetensors.index.json").exists(), shards > 1)
                self.done("verify", out)
                back = self.copy(out, f"b{shards}", "hf")
                self.assertEqual(raw_folder(back), right)

    def test_the_index_says_where_each_tensor_is(self):
        model, right = self.model()
        out = self.copy(model, "s", "hf", "--shards", 3)
        index = json.loads((out / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], sum(len(payload) for _, _, payload in right.values()))
        self.assertEqual(set(index["weight_map"]), set(right))
        for name, file in index["weight_map"].items():
            self.assertIn(name, raw_safetensors(out / file)[0])

    @needs_data
    def test_a_trained_model_there_and_back(self):
        model = STORIES / "full_hf_f32"
        right = raw_folder(model)
        three = self.copy(model, "three", "hf", "--shards", 3)
        one = self.copy(three, "one", "hf")
        for out in (three, one):
            self.assertEqual(raw_folder(out), right)
            self.assertEqual((out / "config.json").read_bytes(), (model / "config.json").read_bytes())
        sizes = [path.stat().st_size for path in three.glob("*.safetensors")]
        self.assertLess(max(sizes), 1.5 * min(sizes))

    def test_refusals_leave_nothing(self):
        model, right = self.model()
        out = self.folder / "out"
        for flags in (["--dtype", "f16"], ["--layers", "0"], ["--expert", "0"]):
            self.refused_and_nothing_left(2, ["--all", flags[0]], model, out, "--format", "hf", *flags)
        self.refused_and_nothing_left(2, ["--all", "huggingface", "gguf"], model, out, "--format", "gguf")
        self.refused_and_nothing_left(2, [f"{len(right) + 1} shards for {len(right)} tensors"], model, out, "--format",
                                      "hf", "--shards", len(right) + 1)
        self.refused_and_nothing_left(2, ["already holds a checkpoint"], model, model, "--format", "hf")
        other = self.folder / "other"
        other.mkdir()
        (other / "README.md").write_text("mine")
        self.refused_and_nothing_left(2, ["README.md", "exists already"], model, other, "--format", "hf")
        self.assertEqual((other / "README.md").read_text(), "mine")
        self.refused_and_nothing_left(4, ["cannot write"], model, out, "--format", "hf", file_size_limit=1000)

    def test_meta_and_a_tensor_in_two_files_are_refused(self):
        self.done("synth", "--dim", 8, "--hidden", 20, "--format", "meta", "-o", self.folder / "meta")
        self.refused_and_nothing_left(3, ["--all", "meta"], self.folder / "meta", self.folder / "out", "--format", "meta")
        model, _ = self.model()
        two = self.copy(model, "two", "hf", "--shards", 2)
        name = "model-00002-of-00002.safetensors"
        first = raw_safetensors(two / "model-00001-of-00002.safetensors")[0]
        add_tensors(two / name, {"aaa.odd": first["aaa.odd"]}, self.METADATA)
        self.refused_and_nothing_left(3, ["aaa.odd", "is also in"], two, self.folder / "out", "--format", "hf")


class Gguf(CopyTest):
    @staticmethod
    def contents(alignment):
        rng = np.random.default_rng(2)
        u32, f32 = (lambda v: struct.pack("<II", 4, v)), (lambda v: struct.pack("<If", 6, v))
        words = ["<s>", "", "ü" * 40]
        pairs = {"general.architecture": struct.pack("<I", 8) + text("llama"), "general.alignment": u32(alignment),
                 "llama.block_count": u32(1), "llama.embedding_length": u32(8), "llama.feed_forward_length": u32(20),
                 "llama.attention.layer_norm_rms_epsilon": f32(1e-5), "split.no": struct.pack("<IH", 2, 0),
                 "tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, 3) + b"".join(map(text, words))}
        shapes = {"token_embd.weight": (1, [8, 3]), "blk.0.ffn_up.weight": (0, [8, 20]),
                  "blk.0.ffn_norm.weight": (0, [8]), "blk.0.odd": (24, [3, 1, 3]), "blk.0.ffn_gate.weight": (0, [8, 20]),
                  "blk.0.ffn_down.weight": (0, [20, 8]), "a.numbers": (27, [5])}
        tensors = {}
        for name, (kind, dims) in shapes.items():
            size = int(np.prod(dims))
            payload = rng.standard_normal(size).astype("<f4").tobytes() if kind == 0 else rng.bytes(size * GGUF_SIZES[kind])
            tensors[name] = kind, dims, payload
        return pairs, tensors

    def test_keys_and_tensors_are_the_same_bytes_in_any_number_of_files(self):
        for alignment in (32, 128):
            pairs, right = self.contents(alignment)
            model = self.folder / f"m{alignment}.gguf"
            model.write_bytes(gguf_bytes(pairs, right, alignment))
            kept = {key: value for key, value in pairs.items() if not key.startswith("split.")}
            for shards in (2, len(right)):
                out = self.copy(model, f"g{alignment}-{shards}", "gguf", "--shards", shards)
                found = {}
                for i in range(shards):
                    keys, tensors = read_gguf(out / f"model-{i + 1:05}-of-{shards:05}.gguf")
                    split = {"split.no": struct.pack("<IH", 2, i), "split.count": struct.pack("<IH", 2, shards),
                             "split.tensors.count": struct.pack("<Ii", 5, len(right))}
                    own = kept if i == 0 else {"general.alignment": kept["general.alignment"]}
                    self.assertEqual(keys, {**own, **split})
                    found.update(tensors)
                self.assertEqual(found, right)
                self.assertEqual(list(found), list(right))
                self.done("verify", out)
                back = self.copy(out, f"b{alignment}-{shards}.gguf", "gguf")
                self.assertEqual(read_gguf(back), (kept, right))
                self.assertEqual(list(read_gguf(back)[0]), list(kept))

    def test_refusals_leave_nothing(self):
        pairs, tensors = self.contents(32)
        model = self.folder / "m.gguf"
        model.write_bytes(gguf_bytes(pairs, tensors))
        out = self.folder / "out"
        self.refused_and_nothing_left(2, ["--all", "gguf", "huggingface"], model, out, "--format", "hf")
        self.refused_and_nothing_left(2, ["exists already"], model, model, "--format", "gguf")
        self.refused_and_nothing_left(2, ["2 shards do not fit one file"], model, self.folder / "n.gguf", "--format",
                                      "gguf", "--shards", 2)
        # The tensors at offsets of this alignment would need as much padding.
        pairs["general.alignment"] = struct.pack("<II", 4, 1 << 20)
        model.write_bytes(gguf_bytes(pairs, tensors, 1 << 20))
        self.refused_and_nothing_left(3, ["general.alignment", 1 << 20], model, out, "--format", "gguf")


if __name__ == "__main__":
    unittest.main()
