"""Ranks at the shape of Llama 3 8B: bits, memory and bytes read; and more bytes at once than MPI counts."""
import os
import unittest

from mpi_support import finish, launch, ranks
from test_ranks import COUNTS, RanksTest, size, table

MIB = 1 << 20


class Large(RanksTest):
    def run_bits(self, count, *mode):
        return finish(launch("-n", count, os.environ["SWIGLU_RANK_BITS"], *mode), 1200)

    def test_the_bits_of_one_process(self):
        for count in COUNTS:
            outcome = self.run_bits(count, "large")
            self.assertEqual(outcome.code, 0, outcome.err)
            # 2 types, 2 arithmetics, 2 storages, 1 and 300 tokens; on every rank.
            self.assertEqual(outcome.out, f"{count} ranks: {count * 16} comparisons, 0 different\n")

    def test_more_than_a_gigabyte_at_once(self):
        self.assertEqual(self.run_bits(2, "huge").code, 0)

    def test_memory_and_bytes_read(self):
        for format, shards in (("hf", 1), ("meta", 8)):
            model = self.folder / format
            self.done("synth", "--preset", "llama-3-8b", "--layers", 1, "--format", format, "--shards", shards, "-o",
                      model)
            for count, storage, tokens in ((2, "plain", 1), (3, "compact", 300), (8, "plain", 128)):
                x = self.rows(tokens, 4096)
                outcome = ranks(count, "run", model, "--layer", 0, "--input", x, "-o", self.folder / "o.npy",
                                "--storage", storage)
                self.assertEqual(outcome.code, 0, outcome.err)
                for rank, row in enumerate(table(outcome)):
                    share = (16 * (rank + 1) // count - 16 * rank // count) / 16
                    what = f"{format}, {storage}, rank {rank} of {count}: {row}"
                    self.assertLess(abs(size(row["read"]) / (share * 3 * 4096 * 14336 * 2) - 1), 0.02, what)
                    # Beyond the packed share and the workspace, 64 MiB above an empty MPI program.
                    sums = (1 + 3) * min(tokens, 256) * 4096 * 4 * (2 if tokens > 256 else 1)
                    workspace = min(tokens, 256) * (4096 + share * 14336) * 4 + sums
                    self.assertLess(size(row["above MPI"]), size(row["packed"]) + workspace + 64 * MIB, what)


if __name__ == "__main__":
    unittest.main(verbosity=2)
