"""swiglu-mpi gives the bytes of swiglu on any number of ranks, reads and holds a share, and fails as one."""
import os
import pathlib
import re
import signal
import time
import unittest

import numpy as np

from mpi_support import RANKS_BINARY, errors, finish, launch, ranks, running_ranks, wait_for
from support import DIM, LAYERS, STORIES, CommandTest, bf16_bits, bf16_npy_bytes, needs_data, swiglu

SANITIZED = bool(os.environ.get("SWIGLU_SANITIZE"))
COUNTS = (1, 3, 8) if SANITIZED else (1, 2, 3, 4, 6, 7, 8, 16)  # a rank takes seconds to start there


FORMS = [*sorted(path for path in STORIES.glob("*_*") if path.is_dir()),
         *(path for path in sorted((STORIES / "gguf").glob("*.gguf")) if "bigendian" not in path.name)]


def table(outcome):
    """The ranks' table on stderr: a list of dicts."""
    lines = outcome.err.splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:2] == ["rank", "host"])
    titles = ["rank", "host", "threads", "groups", "packed", "memory", "above MPI", "read", "loading", "computing",
              "exchanging", "sent"]
    rows = []
    for line in lines[at + 1:]:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) != len(titles):
            break
        rows.append(dict(zip(titles, cells)))
    return rows


def size(text):
    number, unit = text.split()
    return float(number) * {"bytes": 1, "byte": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


class RanksTest(CommandTest):
    def layer(self, dim, hidden, dtype="bf16", **more):
        folder = self.folder / f"d{dim}h{hidden}{dtype}"
        self.done("synth", "--dim", dim, "--hidden", hidden, "--layers", 1, "--dtype", dtype, "-o", folder,
                  *(word for flag, value in more.items() for word in (f"--{flag}", value)))
        return folder

    def rows(self, tokens, dim):
        path = self.folder / f"x{tokens}x{dim}.npy"
        np.save(path, np.random.default_rng(tokens).standard_normal((tokens, dim)).astype(np.float32))
        return path

    def same(self, model, x, counts, *arguments):
        """The output's bytes on so many ranks are those of one process. Returns the last of those runs."""
        one, many = self.folder / "one.npy", self.folder / "many.npy"
        self.done("run", model, "--input", x, "-o", one, *arguments)
        expected = one.read_bytes()
        for count in counts:
            many.unlink(missing_ok=True)
            outcome = ranks(count, "run", model, "--input", x, "-o", many, *arguments)
            self.assertEqual(outcome.code, 0, outcome.err)
            self.assertEqual(many.read_bytes(), expected, f"{count} ranks, {model}, {arguments}")
            self.assertEqual(len(table(outcome)), count)
        return outcome


class Bits(RanksTest):
    @needs_data
    def test_a_trained_model(self):
        for i, form in enumerate(FORMS[::3] if SANITIZED else FORMS):  # Library opens all of them on every rank
            self.same(form, self.rows(5, DIM), (2 + i % 6,), "--layer", i % LAYERS)

    @needs_data
    def test_a_trained_model_as_a_packed_file(self):
        packed = self.folder / "stories.packed"
        self.done("pack", STORIES / "hf_bf16_sharded", "--storage", "compact", "-o", packed)
        self.same(packed, self.rows(3, DIM), (2, 5), "--layer", 2)
        self.same(packed, self.rows(3, DIM), (3,), "--layer", 2, "--map")

    def test_arithmetic_storage_and_widths(self):
        for hidden in (1, 172) if SANITIZED else (1, 15, 172, 10007):
            model = self.layer(48, hidden)
            for tokens in (1, 300):
                x = self.rows(tokens, 48)
                counts = COUNTS if (hidden, tokens) == (172, 300) else (3, COUNTS[-1]) if hidden < 172 else (2, 7)
                self.same(model, x, counts, "--layer", 0, "--compute", "bf16", "--storage", "compact")
                self.same(model, x, counts[:1], "--layer", 0, "--compute", "f32", "--storage", "plain")

    def test_parts_types_and_no_tokens(self):
        model = self.layer(32, 100, "f32")
        x = self.folder / "b.npy"
        values = np.random.default_rng(1).standard_normal((2, 3, 32)).astype(np.float32)
        x.write_bytes(bf16_npy_bytes((2, 3, 32), bf16_bits(values)))
        self.same(model, x, (3,), "--layer", 0, "--part", "ffn")
        self.same(model, self.rows(0, 32), (2,), "--layer", 0, "--dtype", "f64")

    def test_a_narrow_wire_says_that_bits_differ(self):
        model, x = self.layer(64, 512, "f32"), self.rows(4, 64)
        self.same(model, x, (2,), "--layer", 0)
        one = np.load(self.folder / "one.npy").astype(np.float64)
        outcome = ranks(4, "run", model, "--layer", 0, "--input", x, "-o", self.folder / "n.npy", "--wire", "bf16")
        self.assertEqual(outcome.code, 0, outcome.err)
        self.assertIn("not the bits of one process", outcome.err)
        narrow = np.load(self.folder / "n.npy")
        self.assertFalse(np.array_equal(narrow, one))
        # Three roundings to 8 bits on the way up the tree and one of the root, each of at most 2^-9 of a sum.
        self.assertLess(np.linalg.norm(narrow - one) / np.linalg.norm(one), 8 * 2.0**-9)


class Share(RanksTest):
    def test_verify_compares_ranks_with_one_process(self):
        model = self.layer(64, 300)
        outcome = ranks(3, "verify", model, "--json")
        self.assertEqual(outcome.code, 0, outcome.err)
        found = outcome.json
        self.assertEqual(found["ranks"], 3)
        alone = self.done("verify", model, "--json").json
        for with_ranks, without in zip(found["layers"], alone["layers"]):
            self.assertEqual(with_ranks["bits"]["runs"], with_ranks["bits"]["equal"])
            self.assertGreater(with_ranks["bits"]["runs"], without["bits"]["runs"])

    def test_bench_shows_where_the_time_goes(self):
        outcome = ranks(2, "bench", "--dim", 256, "--hidden", 1024, "--tokens", "1,300", "--json")
        self.assertEqual(outcome.code, 0, outcome.err)
        rows = outcome.json["rows"]
        self.assertEqual({row["overlap"] for row in rows}, {"none", "posted", "thread"})
        for row in rows:
            self.assertEqual(len(row["by_rank"]), 2)
            self.assertGreater(row["computing_ms"], 0)
            # Each of two ranks sends what the header says: the sums once (small), or half of them twice.
            self.assertEqual(row["by_rank"][0]["bytes_sent"], row["tokens"] * 256 * 4)
        shown = ranks(2, "bench", "--dim", 64, "--hidden", 128, "--tokens", "1", "--storage", "plain")
        self.assertIn("one process", shown.out)

    def test_every_checkpoint_feeds_any_number_of_ranks_with_their_bytes_only(self):
        for format, shards, count in (("hf", 1, 16), ("hf", 3, 2), ("meta", 8, 3), ("meta", 1, 16), ("gguf", 1, 3)):
            if SANITIZED and count == 16:
                continue
            model = self.folder / f"{format}{shards}{count}"
            self.done("synth", "--dim", 1024, "--hidden", 8192, "--layers", 2, "--format", format, "--shards", shards,
                      "-o", model)
            if format == "gguf":
                model = next(model.glob("*.gguf"))
            x = self.rows(2, 1024)
            outcome = self.same(model, x, (count,), "--layer", 1)
            read = [size(row["read"]) for row in table(outcome)]
            layer = 3 * 1024 * 8192 * 2
            # Headers aside (read in pieces of up to 256 KiB a file), and within what three digits show.
            for rank, found in enumerate(read):
                share = (16 * (rank + 1) // count - 16 * rank // count) * layer / 16
                self.assertLessEqual(found, 1.02 * share + 300e3 * shards, f"{format}, {shards} files, rank {rank} of {count}")
                self.assertGreaterEqual(found, 0.99 * share)


class Library(unittest.TestCase):
    """The library on its own: swiglu_rank_bits compares on every rank."""

    def run_bits(self, count, *mode, **how):
        return finish(launch("-n", count, os.environ["SWIGLU_RANK_BITS"], *mode), **how)

    def same_bits(self, count, comparisons, *mode):
        """Every rank compared so often, and found no difference."""
        outcome = self.run_bits(count, *mode)
        self.assertEqual(outcome.code, 0, outcome.err)
        self.assertEqual(outcome.out, f"{count} ranks: {count * comparisons} comparisons, 0 different\n")

    def test_small_layers_of_many_shapes(self):
        for count in COUNTS if SANITIZED else (*COUNTS, 17):
            # 6 of dim 64 in 2 types, 2 arithmetics, 2 storages, 4 token counts; one of dim 1 at 2; a wire, a reducer.
            self.same_bits(count, 6 * 8 * 4 + 8 * 2 + 3)

    @needs_data
    def test_a_trained_model_in_all_its_forms(self):
        self.assertGreaterEqual(len(FORMS), 9)
        layers = sum(swiglu("inspect", form, "--json").json["layers"] for form in FORMS)
        self.assertGreaterEqual(layers, 9 * LAYERS)
        for count in COUNTS[1:2] if SANITIZED else COUNTS:
            self.same_bits(count, layers * 4 * 2, "models", *FORMS)

    def test_calls_that_differ_are_an_error(self):
        outcome = self.run_bits(2, "differ")
        self.assertNotEqual(outcome.code, 0)
        self.assertRegex(outcome.err, "rank [01].*calls differ|no message for 3 s")


class Failure(RanksTest):
    """Every process ends, one line tells why, and there is no output."""

    def failed(self, outcome, words, codes):
        self.assertIn(outcome.code, codes, outcome.err)
        self.assertEqual(len(errors(outcome)), 1, f"code {outcome.code}: {outcome.err}{outcome.out}")
        for word in words:
            self.assertIn(word, errors(outcome)[0])
        self.assertEqual(outcome.out, "")
        self.assertEqual(list(self.folder.glob("out*")), [])

    def test_all_ranks_have_the_same_trouble(self):
        x = self.rows(1, 32)
        model = self.layer(32, 64)
        out = self.folder / "out.npy"
        started = time.monotonic()
        self.failed(ranks(4, "run", self.folder / "nothing", "--layer", 0, "--input", x, "-o", out), ["nothing"], [3])
        self.failed(ranks(3, "run", model, "--layer", 9, "--input", x, "-o", out), ["layer 9"], [2])
        self.failed(ranks(2, "run", model, "--layer", 0, "--input", x, "-o", out, "--wire", "f16"), ["--wire"], [2])
        self.failed(ranks(2, "run", model, "--layer", 0, "--input", x, "-o", self.folder / "no" / "out.npy"),
                    ["folder"], [4])
        self.failed(ranks(2, "inspect", model), ["inspect"], [2])
        self.assertLess(time.monotonic() - started, 60)

    def test_one_rank_cannot_open_its_part(self):
        model, x = self.layer(32, 64), self.rows(1, 32)
        other = self.folder / "elsewhere"
        other.mkdir()
        arguments = [RANKS_BINARY, "run", model.name, "--layer", 0, "--input", x.name, "-o", "out.npy"]
        for bad in range(3):
            words = []
            for rank in range(3):
                words += [":"] * (rank > 0) + ["-n", 1, "-wdir", other if rank == bad else self.folder, *arguments]
            self.failed(finish(launch(*words), 60), [model.name if bad else x.name], [3])
        # The file is shorter than on the other rank.
        (other / model.name).mkdir()
        for file in model.iterdir():
            content = file.read_bytes()
            (other / model.name / file.name).write_bytes(content[:-100] if file.suffix == ".safetensors" else content)
        self.failed(finish(launch("-n", 1, "-wdir", self.folder, *arguments, ":", "-n", 1, "-wdir", other, *arguments),
                           60), [".safetensors"], [3])

    def test_ranks_that_were_told_different_things(self):
        model, x = self.layer(32, 64), self.rows(1, 32)
        out = self.folder / "out.npy"
        def words(layer):
            return [RANKS_BINARY, "run", model, "--layer", layer, "--input", x, "-o", out]
        self.failed(finish(launch("-n", 1, *words(0), ":", "-n", 1, *words(1)), 60),
                    ["rank 1", "--layer 0", "--layer 1"], [2])
        other = self.folder / "elsewhere"
        other.mkdir()
        self.done("synth", "--dim", 32, "--hidden", 64, "--layers", 1, "--seed", 9, "-o", other / model.name)
        arguments = [RANKS_BINARY, "run", model.name, "--layer", 0, "--input", x, "-o", out]
        self.failed(finish(launch("-n", 1, "-wdir", self.folder, *arguments, ":", "-n", 1, "-wdir", other, *arguments),
                           60), ["rank 1", "norm"], [2])

    @unittest.skipIf(SANITIZED, "a sanitizer must come first, before what is preloaded")
    def test_ranks_of_different_versions(self):
        words = ["-n", 1, RANKS_BINARY, "demo", ":", "-n", 1, "env",
                 f"LD_PRELOAD={os.environ['SWIGLU_OTHER_VERSION']}", RANKS_BINARY, "demo"]
        self.failed(finish(launch(*words), 60), ["rank 1", "the version", "9.9.9"], [2])

    def test_threads_set_on_one_rank_only(self):
        model, x = self.layer(32, 64), self.rows(2, 32)
        one, many = self.folder / "one.npy", self.folder / "many.npy"
        self.done("run", model, "--layer", 0, "--input", x, "-o", one)
        words = [RANKS_BINARY, "run", model, "--layer", 0, "--input", x, "-o", many]
        for which in range(2):
            many.unlink(missing_ok=True)
            ranks = [["-n", 1, *(["env", "SWIGLU_THREADS=1"] if rank == which else []), *words] for rank in range(2)]
            outcome = finish(launch(*ranks[0], ":", *ranks[1]), 60)
            self.assertEqual(outcome.code, 0, outcome.err)
            self.assertEqual(many.read_bytes(), one.read_bytes())

    def test_a_rank_that_never_begins(self):
        model, x = self.layer(32, 64), self.rows(2, 32)
        words = [RANKS_BINARY, "run", model, "--layer", 0, "--input", x, "-o", self.folder / "out.npy", "--timeout", 3]
        stopped = ["bash", "-c", 'kill -STOP $$; exec "$@"', "bash", *words]
        # A program without MPI that ended before another rank begins. (One that ends later is noticed by the launcher.)
        flag = self.folder / "ended"
        ended = ["touch", flag]
        later = ["bash", "-c", 'until [[ -e $0 ]]; do sleep 0.1; done; sleep 1; exec "$@"', flag, *words]
        for first, second in ((later, ended), (stopped, words), (words, stopped)):
            flag.unlink(missing_ok=True)
            outcome = finish(launch("-n", 1, *first, ":", "-n", 1, *second), 60)
            if not outcome.err:
                # Seen once: OpenMPI's launcher failed and printed nothing, not even that a program of its had failed,
                # which it always prints. So it did not pass on what was written to it.
                flag.unlink(missing_ok=True)
                outcome = finish(launch("-n", 1, *first, ":", "-n", 1, *second), 60)
            self.failed(outcome, ["MPI_Init did not return for 3 s", "--timeout"], range(1, 256))

    def stopped(self, count, which, what, *more):
        """bench on `count` ranks, one of which gets a signal while they work."""
        started = launch("-n", count, RANKS_BINARY, "bench", "--dim", 512, "--hidden", 2048, "--tokens", "1,64,200",
                         "--json", self.folder / "out.json", *more)
        found = wait_for(lambda: len(running_ranks(started.pid)) == count and running_ranks(started.pid))
        time.sleep(1.5)
        os.kill(found[which], what)
        begun = time.monotonic()
        outcome = finish(started, 90)
        wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in found.values()))
        return outcome, time.monotonic() - begun

    def test_a_rank_dies(self):
        for which in (0, 2):
            outcome, seconds = self.stopped(3, which, signal.SIGKILL)
            self.assertNotEqual(outcome.code, 0)
            self.assertIn("signal 9", outcome.err + outcome.out)
            self.assertEqual(list(self.folder.glob("out*")), [])
            self.assertLess(seconds, 30)

    def test_a_rank_hangs(self):
        for which in (0, 1):
            outcome, seconds = self.stopped(3, which, signal.SIGSTOP, "--timeout", 3)
            self.failed(outcome, ["gave no answer for 3 s", f"rank {which} "], range(1, 256))
            # 3 s, 2 s for answers, 5 s in which the launcher must end, and much for slow machines.
            self.assertLess(seconds, 60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
