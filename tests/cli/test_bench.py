"""`swiglu bench` on layers of any small size: what it writes, and what it refuses before it measures.
Times are never asserted."""
import functools
import json
import os
import resource
import unittest
import xml.etree.ElementTree
from pathlib import Path

from support import CommandTest, hf_config, small_layer, swiglu, write_hf

SMALL = ("--dim", 64, "--hidden", 172)
ROW = {"threads", "compute", "storage", "isa", "tokens", "time_ms", "gflops", "gb_per_s", "roofline_ratio", "limit",
       "over_plain", "over_plain_spread", "over_plain_samples", "samples_ms", "ratio_samples", "limits_beside"}
KEY = ("threads", "compute", "storage", "isa")
LIMITS = {"read_gb_per_s", "read_pattern", "fma_gflops", "bf16_dot_gflops", "int8_dot_gops"}


@functools.cache
def isas():
    return swiglu("bench", *SMALL, "--storage", "plain", "--tokens", 1, "--threads", 1, "--json").json["machine"]["isas"]


def measured_isas():
    """Without scalar under a sanitizer: one lane at a time, instrumented, its limits alone would take minutes."""
    return [isa for isa in isas() if isa != "scalar" or not os.environ.get("SWIGLU_SANITIZE")]


class Bench(CommandTest):
    def test_json_and_svg(self):
        document, picture = self.folder / "b.json", self.folder / "b.svg"
        outcome = self.done("bench", *SMALL, "--tokens", "3,1", "--threads", "1,2", "--json", document, "--svg", picture)
        for word in ("dim 64, hidden 172", "GFLOP/s", "of the limit", "2 threads", "denormal weights"):
            self.assertIn(word, outcome.out)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["b.json", "b.svg"])
        report = json.loads(document.read_text())
        self.assertEqual((report["schema_version"], report["command"]), (1, "bench"))
        for key in ("commit", "compiler", "machine", "neighbours", "limits", "load", "sets", "rows", "skipped", "notes"):
            self.assertIn(key, report)
        self.assertEqual(report["neighbours"], 0)
        storages = self.storages_in(report)
        self.assertEqual(storages[0], "plain bf16")
        for storage in storages:
            self.assertEqual([(row["threads"], row["tokens"]) for row in report["rows"] if row["storage"] == storage],
                             [(1, 3), (1, 1), (2, 3), (2, 1)])
        for row in report["rows"]:
            self.assertLessEqual(ROW, row.keys())
            self.assertEqual(row["compute"], "bf16")
            self.assertEqual(len(row["over_plain_samples"]), 0 if row["storage"] == "plain bf16" else len(row["ratio_samples"]))
            self.assertEqual(row["over_plain"] is None, row["storage"] == "plain bf16")
            self.assertIn(row["limit"], ("bandwidth", "compute"))
            self.assertGreaterEqual(len(row["ratio_samples"]), 3)
            self.assertEqual(len(row["limits_beside"]), len(row["ratio_samples"]) + 1)
            self.assertGreater(row["time_ms"], 0)
            self.assertLessEqual(min(row["samples_ms"]), row["time_ms"])
            self.assertLessEqual(row["time_ms"], max(row["samples_ms"]))
            for limits in row["limits_beside"]:
                self.assertLessEqual(LIMITS, limits.keys())
                self.assertGreater(limits["read_gb_per_s"], 0)
                self.assertGreater(limits["fma_gflops"], 0)
        self.assertEqual([limits["threads"] for limits in report["limits"] if limits["storage"] == "plain bf16"], [1, 2])
        for limits in report["limits"]:
            names = [pattern["name"] for pattern in limits["read_patterns"]]
            self.assertEqual(len(names), len(set(names)))
            self.assertIn("one token's bf16 products", names)
            self.assertIn(limits["read_pattern"], names)
        self.assertEqual([load["storage"] for load in report["load"]], storages)
        self.assertEqual(outcome.out.count("  loading  "), len(storages))
        for load in report["load"]:
            self.assertEqual(load["from"], "memory")
            self.assertEqual(load["source_bytes"], 3 * 64 * 172 * 2)
            self.assertEqual(len(load["samples_ms"]), len(load["beside_samples_ms"]))
        self.assertEqual([(row["storage"], row["tokens"]) for row in report["denormal_weights"]],
                         [(storage, tokens) for storage in storages for tokens in (1, 16)])
        root = xml.etree.ElementTree.parse(picture).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        text = picture.read_text()
        for word in ("tokens a call", "Time per token", "avx" if "avx" in report["rows"][0]["isa"] else "scalar"):
            self.assertIn(word, text)
        self.assertNotIn("nan", text)

    def storages_in(self, report):
        """In order; the sets say of each what the rows do, and bytes that fit bits."""
        sets = {tuple(entry[key] for key in KEY): entry for entry in report["sets"]}
        self.assertEqual(len(sets), len(report["sets"]))
        self.assertEqual(set(sets), {tuple(row[key] for key in KEY) for row in report["rows"]})
        weights = 3 * report["layer"]["dim"] * report["layer"]["hidden"]
        for row in report["rows"]:
            entry = sets[tuple(row[key] for key in KEY)]
            self.assertEqual(row["packed_bytes"], entry["packed_bytes"])
            self.assertAlmostEqual(entry["bits_per_weight"] * weights / 8, entry["packed_bytes"], places=3)
            self.assertLessEqual(entry["plain_panels"], entry["panels"])
            if row["storage"].startswith("plain"):
                self.assertEqual((entry["plain_panels"], entry["patches"]), (0, 0))
        return list(dict.fromkeys(entry["storage"] for entry in report["sets"]))

    def test_a_storage_that_turns_out_equal_is_measured_once(self):
        for flags, most in ((["--storage", "automatic,plain,compact"], 2), (["--storage", "compact"], 1), ([], 2)):
            report = self.done("bench", "--dim", 256, "--hidden", 512, "--tokens", 1, "--threads", 1, *flags, "--json").json
            storages = self.storages_in(report)
            self.assertLessEqual(len(storages), most)
            self.assertLessEqual(set(storages), {"plain bf16", "compact bf16"})
            for row in report["rows"]:
                compared = row["storage"] == "compact bf16" and "plain bf16" in storages
                self.assertEqual(row["over_plain"] is not None, compared)
        report = self.done("bench", *SMALL, "--dtype", "f16", "--storage", "compact,automatic", "--tokens", 1,
                           "--threads", 1, "--json").json
        self.assertEqual(self.storages_in(report), ["plain f16"])  # only bf16 has another

    def test_neighbours(self):
        arguments = ("bench", *SMALL, "--storage", "plain", "--tokens", 1, "--threads", 1, "--neighbours", 2)
        document = self.folder / "n.json"
        shown = self.done(*arguments, "--json", document).out
        report = json.loads(document.read_text())
        document.unlink()
        self.assertEqual(report["neighbours"], 2)
        self.assertGreater(report["neighbours_gb_per_s"], 0)
        for load in report["load"]:
            if not os.environ.get("SWIGLU_SANITIZE"):  # which shadows all memory
                self.assertLess(load["peak_memory_bytes"], 64 << 20)  # theirs is no part of it
        self.assertIn("beside 2 neighbours", shown.splitlines()[0])
        # They stop when something fails, too.
        self.refused(4, ["b.json"], *arguments, "--json", self.folder / "b.json", file_size_limit=100)

    def test_a_model_is_loaded_from_its_files(self):
        model = self.folder / "model"
        self.done("synth", *SMALL, "--layers", 2, "--format", "meta", "--shards", 2, "--dtype", "f32", "-o", model)
        for which in (model, self.folder / "bare.safetensors"):
            if which != model:
                self.done("synth", *SMALL, "--dtype", "f16", "-o", self.folder / "hf")
                (self.folder / "hf" / "model.safetensors").rename(which)
            layer = 1 if which == model else 0
            report = self.done("bench", which, "--layer", layer, "--tokens", 1, "--threads", 1, "--compute", "f32", "--json").json
            self.assertEqual([(load["from"], load["beside"]) for load in report["load"]], [("files", "pread")])
            self.assertIn(f"layer {layer} of", report["layer"]["name"])
            self.assertEqual([row["compute"] for row in report["rows"]], ["f32"])
        self.refused(2, ["layer 2"], "bench", model, "--layer", 2)

    def test_rows_for_every_arithmetic_and_instruction_set(self):
        chosen = [isa for isa in ("scalar", "avx2", "avx512") if isa in measured_isas()][:2]
        report = self.done("bench", *SMALL, "--dtype", "f32", "--compute", "automatic,f32,bf16", "--isa", ",".join(chosen),
                           "--storage", "plain", "--tokens", 1, "--threads", 1, "--json").json
        keys = [tuple(row[key] for key in KEY) for row in report["rows"]]
        self.assertEqual(keys, [(1, "f32", "plain f32", isa) for isa in chosen] +
                         [(1, "bf16", "plain bf16", isa) for isa in chosen])  # automatic was f32: not twice

    def test_the_environment_chooses(self):
        # Two that are quickly measured; the rows above have the slow one.
        for isa in [isa for isa in isas() if isa != "scalar"][:2] or isas():
            report = self.done("bench", *SMALL, "--storage", "plain", "--tokens", 1, "--json",
                               env={"SWIGLU_ISA": isa, "SWIGLU_THREADS": "1"}).json
            self.assertEqual([(row["threads"], row["isa"]) for row in report["rows"]], [(1, isa)])

    def test_existing_results_are_replaced(self):
        document = self.folder / "b.json"
        document.write_text("{}")
        self.done("bench", *SMALL, "--storage", "plain", "--tokens", 1, "--threads", 1, "--json", document)
        self.assertEqual(json.loads(document.read_text())["command"], "bench")


class Quota(CommandTest):
    def test_a_cgroup_quota_is_the_number_of_cpus(self):
        for root, quota in ((Path("/sys/fs/cgroup/cpu"), ("cpu.cfs_quota_us", "100000")),
                            (Path("/sys/fs/cgroup"), ("cpu.max", "100000 100000"))):
            group = root / f"swiglu-test-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                (group / quota[0]).write_text(quota[1])
                report = self.done("bench", *SMALL, "--storage", "plain", "--tokens", 1, "--json", prefix=[
                    "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]).json
                self.assertEqual(report["machine"]["cpus"], 1)
                return
            except OSError:
                continue
            finally:
                group.rmdir()
        self.skipTest("this user may make no cgroup with a CPU quota")


class Memory(CommandTest):
    def limited(self, limit, *arguments):
        import subprocess
        done = subprocess.run([os.environ["SWIGLU_BIN"], "bench", *map(str, arguments)], capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        return done.returncode, done.stdout, done.stderr

    def setUp(self):
        super().setUp()
        if os.environ.get("SWIGLU_SANITIZE"):
            self.skipTest("a sanitizer reserves more address space than that")

    def test_a_smaller_default(self):
        code, out, err = self.limited(400 << 20, "--tokens", 1, "--threads", 1, "--json")
        self.assertEqual(code, 0, err)
        report = json.loads(out)
        self.assertIn("llama-3.2-1b", report["layer"]["name"])
        self.assertTrue(any("llama-3-8b" in note and "available" in note for note in report["notes"]), report["notes"])

    def test_too_little_is_said_before_anything_is_made(self):
        code, out, err = self.limited(200 << 20, "--preset", "llama-3.1-405b", "--threads", 1)
        self.assertEqual((code, out, err.count("\n")), (4, "", 1), err)
        for word in ("llama-3.1-405b", "needs about", "available", "--preset llama-3.2-1b"):
            self.assertIn(word, err)
        self.refused(4, ["needs about", "available"], "bench", "--dim", 2**62, "--hidden", 2**62)
        code, out, err = self.limited(700 << 20, *SMALL, "--neighbours", 256, "--threads", 1)  # 64 MiB each
        self.assertEqual((code, out, err.count("\n")), (4, "", 1), err)
        self.assertIn("needs about", err)

    def test_storages_that_do_not_fit_together_are_measured_one_after_another(self):
        """A layer of 201 MB: one packed copy and the probe's 64 MiB fit, two do not."""
        code, out, err = self.limited(480 << 20, "--dim", 4096, "--hidden", 8192, "--tokens", 1, "--threads", 1, "--json")
        self.assertEqual(code, 0, err)
        report = json.loads(out)
        self.assertEqual(report["load"][0]["from"], "not measured")
        if len(report["sets"]) > 1:
            self.assertTrue(any("one after another" in note for note in report["notes"]), report["notes"])
            self.assertEqual({row["over_plain"] for row in report["rows"]}, {None})


class Refusals(CommandTest):
    def test_lists_and_combinations(self):
        for words, arguments in [
            (["--tokens", "'0'"], ["--tokens", 0]),
            (["--tokens", "'-1'"], ["--tokens", "1,-1"]),
            (["--tokens", "''"], ["--tokens", ""]),
            (["--tokens", "'1,,2'"], ["--tokens", "1,,2"]),
            (["--tokens", "'1,'"], ["--tokens", "1,"]),
            (["--tokens", "'some'"], ["--tokens", "1,some"]),
            (["--tokens", "'1 2'"], ["--tokens", "1 2"]),
            (["--tokens", "'99999999999999999999'"], ["--tokens", "99999999999999999999"]),
            (["--tokens", "16 is there twice"], ["--tokens", "16,1,16"]),
            (["--threads", "'0'"], ["--threads", "1,0"]),
            (["--threads", "1 is there twice"], ["--threads", "1,1"]),
            (["--compute", "'int8'"], ["--compute", "f32,int8"]),
            (["--storage", "'tight'"], ["--storage", "plain,tight"]),
            (["--storage", "plain is there twice"], ["--storage", "plain,plain"]),
            (["--neighbours", "'-1'"], ["--neighbours", "-1"]),
            (["--neighbours", "from 0 to 256"], ["--neighbours", 257]),
            (["sse9"], ["--isa", "sse9"]),
            (["--dtype", "'i4'"], ["--dtype", "i4"]),
            (["llama-9"], ["--preset", "llama-9"]),
            (["--preset", "--dim"], ["--preset", "llama-3-8b", "--dim", 8]),
            (["--dim", "--hidden"], ["--dim", 8]),
            (["--layer", "MODEL"], [*SMALL, "--layer", 0]),
            (["did you mean '--tokens'"], ["--token", 1]),
        ]:
            with self.subTest(arguments=arguments):
                self.refused(2, words, "bench", *arguments)

    def test_an_instruction_set_that_this_machine_lacks(self):
        missing = [isa for isa in ("scalar", "avx2", "avx512", "avx512bf16") if isa not in isas()]
        for isa in missing:
            self.refused(2, [isa, "lacks"], "bench", *SMALL, "--isa", isa)
            self.refused(2, [isa, "lacks"], "bench", *SMALL, env={"SWIGLU_ISA": isa})

    def test_models(self):
        self.refused(3, ["nowhere"], "bench", self.folder / "nowhere")
        import numpy as np
        model = write_hf(self.folder / "model", [small_layer(np.random.default_rng(1))], hf_config())
        self.refused(2, ["MODEL", "--preset"], "bench", model, "--preset", "llama-3-8b")
        self.refused(2, ["MODEL", "--dtype"], "bench", model, "--dtype", "f32")

    def test_outputs_that_cannot_be_written(self):
        """Said at once: nothing is measured for minutes first."""
        import time
        (self.folder / "weights.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
        started = time.monotonic()
        for flag in ("--json", "--svg"):
            self.refused(4, ["missing"], "bench", flag, self.folder / "missing" / "x")
            self.refused(4, ["folder"], "bench", flag, self.folder)
            self.refused(4, ["/dev/null", "regular"], "bench", flag, "/dev/null")
            # A MODEL that slipped behind --json is not overwritten.
            self.refused(2, ["weights.safetensors", "not replaced"], "bench", flag, self.folder / "weights.safetensors")
        # The second output is refused: the first leaves nothing.
        self.refused(4, ["missing"], "bench", "--json", self.folder / "b.json", "--svg", self.folder / "missing" / "x")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["weights.safetensors"])
        self.assertLess(time.monotonic() - started, 60)

    def test_a_full_disk_leaves_nothing(self):
        self.refused(4, ["b.json"], "bench", *SMALL, "--tokens", 1, "--threads", 1, "--json", self.folder / "b.json",
                     file_size_limit=100)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
