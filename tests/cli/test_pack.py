"""Packed files: `pack`, and every command on what it writes. The answer is always the checkpoint's own."""
import json
import os
import re
import struct
import subprocess
import unittest

import numpy as np

from support import CommandTest, swiglu, write_safetensors

DIM, HIDDEN = 64, 200
HOLD = os.environ.get("SWIGLU_HOLD", "")


def header_of(path):
    """(offset, JSON) of a packed file's header, as docs/formats.md describes it."""
    raw = path.read_bytes()
    offset, size = struct.unpack_from("<QQ", raw, len(raw) - 64)
    return offset, json.loads(raw[offset:offset + size])


def flipped(path, at, name):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    damaged = path.with_name(name)
    damaged.write_bytes(raw)
    return damaged


class PackTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.input, self.y = self.folder / "x.npy", self.folder / "y.npy"
        np.save(self.input, np.random.default_rng(3).standard_normal((5, DIM)).astype(np.float32))

    def make(self, name, *flags):
        self.done("synth", "--dim", DIM, "--hidden", HIDDEN, "-o", self.folder / name, *flags)
        return self.folder / name

    def pack(self, model, name, *flags):
        self.done("pack", model, "-o", self.folder / name, *flags)
        return self.folder / name

    def run_on(self, model, layer, *flags):
        said = self.done("run", model, "--layer", layer, "--input", self.input, "-o", self.y, *flags).err
        return self.y.read_bytes(), said

    def same(self, model, packed, layer, flags=(), how=()):
        """The bytes of a run on the file, however it is opened, are those of a run on the checkpoint."""
        expected = self.run_on(model, layer, *flags)[0]
        for more in ((), ("--map",)):
            self.assertEqual(self.run_on(packed, layer, *how, *more)[0], expected, (packed, layer, flags, how, more))


class RoundTrip(PackTest):
    def test_every_kind_of_weights(self):
        for form in (("--format", "hf"), ("--format", "meta", "--shards", 2)):
            for dtype in ("bf16", "f32", "f16"):
                model = self.make(f"{form[1]}_{dtype}", "--layers", 1, "--dtype", dtype, *form)
                for compute in ("automatic", "bf16", "f32"):
                    for storage in ("automatic", "plain", "compact"):
                        with self.subTest(form=form, dtype=dtype, compute=compute, storage=storage):
                            packed = self.pack(model, "p.swiglu", "--compute", compute, "--storage", storage)
                            self.same(model, packed, 0, ("--compute", compute))
                self.assertIn("sound", self.done("inspect", packed, "--stats").out)

    def test_options_that_the_file_does_not_fit(self):
        """Packed anew, from weights that are those of the checkpoint unless they were rounded for the file."""
        model = self.make("m", "--dtype", "bf16")
        packed = self.pack(model, "p.swiglu", "--storage", "compact")
        for how in (["--storage", "plain"], ["--compute", "f32"], ["--compute", "f32", "--storage", "plain"],
                    ["--part", "ffn"], ["--numerics", "meta"], ["--eps", "1e-3"], ["--dtype", "f64"]):
            self.same(model, packed, 0, how, how)
        self.assertIn("packed anew as plain bf16", self.run_on(packed, 0, "--storage", "plain")[1])
        self.assertRegex(self.run_on(packed, 0)[1], r"compact bf16 .*: read in ")
        self.assertRegex(self.run_on(packed, 0, "--map")[1], r"compact bf16 .*: mapped in ")
        for isa in ("scalar", "avx2"):
            outcome = swiglu("run", packed, "--layer", 0, "--input", self.input, "-o", self.y, env={"SWIGLU_ISA": isa})
            if outcome.code == 0:
                self.assertEqual(self.y.read_bytes(), self.run_on(model, 0)[0])

    def test_some_layers_keep_their_numbers(self):
        model = self.make("m", "--layers", 9)
        said = self.done("pack", model, "--layers", "7,0,3-4", "-o", self.folder / "some.swiglu").err
        self.assertRegex(said, r"^pack: 4 of 9 layers \(dim 64, hidden 200\), compute bf16, \w+ bf16 \([\d.]+ bits a "
                               r"weight\), \d+ threads?: [\d.]+ kB written in .*some\.swiglu\n$")
        some = self.folder / "some.swiglu"
        for layer in (0, 3, 4, 7):
            self.same(model, some, layer)
        self.assertIn("layer 7 of the 4 in the file", self.run_on(some, 7)[1])
        self.refused(2, ["layer 1", "0, 3-4, 7"], "run", some, "--layer", 1, "--input", self.input, "-o", self.y)
        self.refused(2, ["layer 1", "0, 3-4, 7"], "pack", some, "--layers", "0-3", "-o", self.folder / "q.swiglu")
        report = self.done("verify", some, "--json").json
        self.assertEqual(sorted({layer["layer"] for layer in report["layers"]}), [0, 3, 4, 7])
        report = self.done("inspect", some, "--json", "--stats").json
        self.assertEqual(sorted({stats["layer"] for stats in report["stats"]}), [0, 3, 4, 7])
        later = self.pack(some, "later.swiglu", "--layers", "4-4,7")  # a packed file is packed like any other
        self.same(model, later, 7)
        report = self.done("bench", later, "--tokens", 1, "--threads", 1, "--storage", "automatic", "--json").json
        self.assertIn("layer 4 of", report["layer"]["name"])  # its first

    def test_packing_a_packed_file_again(self):
        model = self.make("m", "--layers", 2)
        first = self.pack(model, "a.swiglu", "--storage", "compact")
        again = self.pack(first, "b.swiglu")
        self.assertEqual(again.read_bytes(), first.read_bytes())  # as it was, what it came from too
        plain = self.pack(first, "plain.swiglu", "--storage", "plain")
        self.assertEqual(plain.read_bytes(), self.pack(model, "c.swiglu", "--storage", "plain").read_bytes())
        self.assertEqual(self.pack(plain, "a2.swiglu", "--storage", "compact").read_bytes(), first.read_bytes())
        self.assertEqual(self.pack(model, "a.swiglu", "--layers", "all", "--storage", "compact"), first)  # replaced

    def test_eps_goes_into_the_file(self):
        (self.make("m") / "model.safetensors").rename(self.folder / "bare.safetensors")
        packed = self.pack(self.folder / "bare.safetensors", "p.swiglu", "--eps", "1e-3")
        self.same(self.folder / "bare.safetensors", packed, 0, ("--eps", "1e-3"))
        self.assertEqual(self.done("inspect", packed, "--json").json["eps"], 1e-3)

    @unittest.skipUnless(os.path.isfile(os.environ.get("SWIGLU_PACKED_EXAMPLE", "")), "set SWIGLU_PACKED_EXAMPLE")
    def test_the_example_in_the_readme(self):
        model = self.make("m", "--layers", 2)
        said = subprocess.run([os.environ["SWIGLU_PACKED_EXAMPLE"], model, self.folder / "e.swiglu"], text=True, check=True,
                              capture_output=True).stdout
        self.assertRegex(said, r"^bf16 compute, \w+ bf16, [\d.]+ bits a weight: ")
        self.assertEqual((self.folder / "e.swiglu").read_bytes(), self.pack(model, "p.swiglu").read_bytes())


class Looking(PackTest):
    def test_inspect(self):
        model = self.make("m", "--layers", 3)
        self.assertEqual(self.done("inspect", model, "--json").json["packed_layers"], [])
        for storage, bits in (("compact", (12, 12.6)), ("plain", (16, 17))):
            packed = self.pack(model, f"{storage}.swiglu", "--storage", storage)
            report = self.done("inspect", packed, "--json").json
            self.assertEqual((report["format"], report["sound"], report["layers"]), ("packed", True, 3))
            self.assertEqual([layer["layer"] for layer in report["packed_layers"]], [0, 1, 2])
            for layer in report["packed_layers"]:
                self.assertEqual((layer["compute"], layer["gate_up"]["storage"]), ("bf16", f"{storage} bf16"))
                self.assertEqual(layer["gate_up"]["bytes"] + layer["down"]["bytes"], layer["packed_bytes"])
                self.assertLess(layer["packed_bytes"], packed.stat().st_size)
                self.assertTrue(bits[0] <= layer["bits_per_weight"] < bits[1] * 1.1, layer)
            text = self.done("inspect", packed).out
            for word in ("model.safetensors", "sound", f"bf16 compute, {storage} bf16", "bits a weight", "a layer"):
                self.assertIn(word, text)
            self.assertEqual("patched" in text, storage == "compact")
            numbers = [[(s["layer"], s["role"], s["min"], s["max"], s["rms"]) for s in
                        self.done("inspect", which, "--stats", "--json").json["stats"]] for which in (model, packed)]
            self.assertEqual(*numbers)

    def test_verify(self):
        model = self.make("m", "--dtype", "bf16")
        report = self.done("verify", model, "--json").json
        for layer in report["layers"]:
            self.assertEqual(layer["bits"]["storages"], ["plain bf16", "compact bf16"])
        self.assertIn("; plain bf16, compact bf16; ", self.done("verify", model).out)
        for flags in ((), ("--map",)):
            packed = self.pack(model, "p.swiglu", "--storage", "compact")
            report = self.done("verify", packed, *flags, "--json").json
            self.assertTrue(report["pass"])
            self.assertEqual([layer["compute"] for layer in report["layers"]], ["bf16", "f32"])
            for layer in report["layers"]:
                self.assertEqual(layer["bits"]["storages"], ["compact bf16 of the file", "plain bf16", "compact bf16"])
                self.assertEqual(layer["storage"], "compact bf16")
        f16 = self.pack(self.make("f16", "--dtype", "f16"), "f16.swiglu")
        report = self.done("verify", f16, "--json").json
        self.assertEqual([layer["bits"]["storages"] for layer in report["layers"]],
                         [["plain f16 of the file", "plain f16"]])

    def test_bench(self):
        packed = self.pack(self.make("m", "--dtype", "bf16"), "p.swiglu", "--storage", "compact")
        report = self.done("bench", packed, "--tokens", 1, "--threads", 1, "--json").json
        self.assertEqual([load["storage"] for load in report["load"]], ["plain bf16", "compact bf16"])
        _, header = header_of(packed)
        layer = header["layers"][0]
        size = sum(layer[part][what]["bytes"] for part in ("gate_up", "down") for what in ("index", "payload"))
        for load in report["load"]:
            self.assertEqual((load["from"], load["beside"], load["source_bytes"]), ("files", "pread", size))
        self.assertTrue(any("packed anew as plain bf16" in note for note in report["notes"]), report["notes"])
        report = self.done("bench", packed, "--tokens", 1, "--threads", 1, "--storage", "automatic", "--map", "--json").json
        self.assertEqual([row["storage"] for row in report["rows"]], ["compact bf16"])
        self.assertFalse(any("anew" in note for note in report["notes"]), report["notes"])


class Damage(PackTest):
    def setUp(self):
        super().setUp()
        self.packed = self.pack(self.make("m", "--layers", 2), "p.swiglu", "--storage", "compact")
        self.header, description = header_of(self.packed)
        self.layer = description["layers"][1]

    def refuse(self, path, words, layer=1):
        """By every command that uses the layer, in one line, with nothing left behind."""
        before = sorted(self.folder.iterdir())
        self.refused(3, words, "run", path, "--layer", layer, "--input", self.input, "-o", self.y)
        self.refused(3, words, "run", path, "--layer", layer, "--input", self.input, "-o", self.y, "--numerics", "meta")
        self.refused(3, words, "verify", path)
        self.refused(3, words, "bench", path, "--layer", layer, "--tokens", 1, "--threads", 1)
        self.refused(3, words, "pack", path, "-o", self.folder / "q.swiglu")
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_the_header(self):
        for at, words in ((self.header + 5, ["checksum"]), (0, ["packed.swiglu"]), (10, ["version"]), (-1, ["end mark"]),
                          (-64, ["header"])):
            damaged = flipped(self.packed, at, "packed.swiglu")
            self.refuse(damaged, ["packed.swiglu"] if at == 0 else words)
            self.refused(3, ["packed.swiglu"], "inspect", damaged)

    def test_index_payload_and_norm(self):
        """What only shows when it is read: `inspect` is able to say the rest, and says that it is not sound."""
        places = {"index": self.layer["down"]["index"], "payload": self.layer["gate_up"]["payload"],
                  "checksums": self.layer["down"]["checksums"], "norm": self.layer["norm"]}
        for what, region in places.items():
            with self.subTest(what=what):
                damaged = flipped(self.packed, region["offset"] + region["bytes"] // 2, "d.swiglu")
                self.refuse(damaged, ["d.swiglu", "layer 1", what, "checksum"])
                self.done("run", damaged, "--layer", 0, "--input", self.input, "-o", self.folder / "z.npy")
                for flags in ([], ["--stats"]):
                    outcome = swiglu("inspect", damaged, *flags, "--json")
                    self.assertEqual(outcome.code, 0 if what == "payload" and not flags else 1, outcome.out)
                    self.assertEqual([bool(re.search(what, text)) for text in outcome.json["problems"]],
                                     [True] * outcome.code, outcome.json["problems"])
                if what == "payload":
                    self.done("run", damaged, "--layer", 1, "--map", "--input", self.input, "-o", self.folder / "z.npy")

    def test_cut_short(self):
        raw = self.packed.read_bytes()
        for size in (0, 8, 63, 128, len(raw) // 2, len(raw) - 1):
            cut = self.folder / "cut.swiglu"
            cut.write_bytes(raw[:size])
            self.refuse(cut, ["cut.swiglu"])
            self.refused(3, ["cut.swiglu"], "inspect", cut)


class Refusals(PackTest):
    def test_layers_and_flags(self):
        model, out = self.make("m", "--layers", 2, "--dtype", "f32"), ("-o", self.folder / "p.swiglu")
        for words, arguments in [
            (["--output"], ["pack", model]),
            (["layer 2", "0 to 1"], ["pack", model, *out, "--layers", "0-2"]),
            (["layer 9223372036854775807"], ["pack", model, *out, "--layers", 2**63 - 1]),
            (["as 0,3,5-8", "'1-0'"], ["pack", model, *out, "--layers", "1-0"]),
            (["as 0,3,5-8", "'one'"], ["pack", model, *out, "--layers", "one"]),
            (["as 0,3,5-8", "'0-'"], ["pack", model, *out, "--layers", "0-"]),
            (["as 0,3,5-8"], ["pack", model, *out, "--layers=-1"]),
            (["--layers", "''"], ["pack", model, *out, "--layers", ""]),
            (["--layers", "not 1 twice"], ["pack", model, *out, "--layers", "0-1,1"]),
            (["1 is there twice"], ["pack", model, *out, "--layers", "1,1"]),
            (["'tight'"], ["pack", model, *out, "--storage", "tight"]),
            (["'int8'"], ["pack", model, *out, "--compute", "int8"]),
            (["did you mean '--layers'"], ["pack", model, *out, "--layer", 0]),
            (["packed", "mapped"], ["run", model, "--layer", 0, "--map", "--input", self.input, "-o", self.y]),
            (["packed", "mapped"], ["verify", model, "--map"]),
            (["packed", "mapped"], ["bench", model, "--map"]),
            (["--map", "MODEL"], ["bench", "--map"]),
        ]:
            with self.subTest(arguments=arguments):
                self.refused(2, words, *arguments)
        self.refused(3, ["nowhere"], "pack", self.folder / "nowhere", *out)
        self.refused(3, ["--hidden", "200"], "pack", self.pack(model, "q.swiglu"), "--hidden", 100, *out)
        self.assertFalse((self.folder / "p.swiglu").exists())
        self.assertEqual([path.name for path in self.folder.iterdir() if "partial" in path.name], [])

    def test_a_model_without_layers(self):
        model = self.folder / "m.safetensors"
        write_safetensors(model, {"model.embed_tokens.weight": ("F32", np.zeros((4, 4)))})
        self.refused(3, ["m.safetensors"], "pack", model, "-o", self.folder / "p.swiglu")
        self.assertFalse((self.folder / "p.swiglu").exists())

    def test_places_that_cannot_be_written(self):
        model = self.make("m")
        self.refused(4, ["missing"], "pack", model, "-o", self.folder / "missing" / "p.swiglu")
        self.refused(4, ["folder"], "pack", model, "-o", model)
        self.refused(4, ["/dev/null", "regular"], "pack", model, "-o", "/dev/null")
        # Said before the weights are looked at.
        self.refused(4, ["missing"], "pack", self.folder / "nowhere", "-o", self.folder / "missing" / "p.swiglu")

    def test_what_is_no_packed_file_is_not_replaced(self):
        model = self.make("m")
        weights = (model / "model.safetensors").read_bytes()
        (self.folder / "notes.txt").write_text("mine")
        self.refused(2, ["notes.txt", "not replaced"], "pack", model, "-o", self.folder / "notes.txt")
        self.refused(2, ["config.json", "not replaced"], "pack", model, "-o", model / "config.json")
        (self.folder / "link").symlink_to(model / "model.safetensors")
        (self.folder / "hard.swiglu").hardlink_to(model / "model.safetensors")
        for name in (model / "model.safetensors", self.folder / "link", self.folder / "hard.swiglu"):
            self.refused(2, [name.name, "file of MODEL"], "pack", model, "-o", name)
        self.assertEqual((model / "model.safetensors").read_bytes(), weights)
        packed = self.pack(model, "p.swiglu")
        before = packed.read_bytes()
        self.refused(2, ["p.swiglu", "file of MODEL"], "pack", packed, "-o", packed)
        self.assertEqual(packed.read_bytes(), before)
        (self.folder / "empty").write_bytes(b"")
        self.pack(model, "empty")

    def test_a_full_disk_leaves_nothing(self):
        model = self.make("m", "--layers", 2)
        self.refused(4, ["p.swiglu"], "pack", model, "-o", self.folder / "p.swiglu", file_size_limit=50_000)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["m", "x.npy"])
        packed = self.pack(model, "p.swiglu")
        before = packed.read_bytes()
        self.refused(4, ["p.swiglu"], "pack", model, "-o", packed, "--storage", "plain", file_size_limit=50_000)
        self.assertEqual(packed.read_bytes(), before)


def kilobytes(pid, path):
    """Sums of /proc/PID/smaps: [Rss, Pss] of the mappings of `path`, and of the whole process."""
    of_file, whole, inside = [0, 0], [0, 0], False
    with open(f"/proc/{pid}/smaps") as smaps:
        for line in smaps:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                inside = line.rstrip().endswith(f" {path}")
            found = re.match(r"(Rss|Pss): +(\d+) kB", line)
            if found:
                place = ("Rss", "Pss").index(found[1])
                whole[place] += int(found[2])
                of_file[place] += int(found[2]) * inside
    return of_file, whole


@unittest.skipUnless(os.path.isfile(HOLD), "set SWIGLU_HOLD to the program of hold_layer.cc")
@unittest.skipUnless(os.path.exists("/proc/self/smaps"), "this system has no /proc/PID/smaps")
class Sharing(CommandTest):
    def hold(self, packed, how):
        """Two processes that hold layer 1 at once: the layer's kilobytes, and theirs."""
        holders = [subprocess.Popen([HOLD, packed, "1", how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                   for _ in range(2)]
        try:
            ready = [holder.stdout.readline().split() for holder in holders]
            self.assertEqual([words[0] for words in ready], ["ready"] * 2)
            return int(ready[0][1]) / 1024, [kilobytes(holder.pid, packed) for holder in holders]
        finally:
            for holder in holders:
                holder.communicate()

    def test_two_processes_map_one_copy(self):
        self.done("synth", "--dim", 2048, "--hidden", 4096, "--layers", 2, "-o", self.folder / "m")
        packed = self.folder / "p.swiglu"
        self.done("pack", self.folder / "m", "-o", packed)
        layer, mapped = self.hold(packed, "map")
        _, read = self.hold(packed, "read")
        print(f"\none packed layer: {layer:.0f} kB. Two processes that hold it at once:")
        for how, processes in (("mapped", mapped), ("read", read)):
            for (file_rss, file_pss), (_, whole_pss) in processes:
                print(f"  {how}: of the file Rss {file_rss} kB, Pss {file_pss} kB; Pss of the process {whole_pss} kB")
            print(f"  {how}, both: Pss {sum(p[0][1] for p in processes)} kB of the file, "
                  f"{sum(p[1][1] for p in processes)} kB in all, {sum(p[1][1] for p in processes) / layer:.2f} layers")
        for (file_rss, _), _ in mapped:
            self.assertGreater(file_rss, 0.95 * layer)  # each sees all of it
        self.assertLess(sum(of_file[1] for of_file, _ in mapped), 1.1 * layer)  # and there is one
        self.assertGreater(sum(of_file[1] for of_file, _ in mapped), 0.95 * layer)
        for of_file, whole in read:
            self.assertEqual(of_file, [0, 0])
            self.assertGreater(whole[1], 0.95 * layer)
        if not os.environ.get("SWIGLU_SANITIZE"):  # whose shadow memory is larger than the layer
            self.assertLess(sum(whole[1] for _, whole in mapped), 1.6 * layer)
            self.assertGreater(sum(whole[1] for _, whole in read), 1.95 * layer)


if __name__ == "__main__":
    unittest.main()
