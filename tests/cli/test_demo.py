"""The demonstration keeps its promises: 3 GiB, accurate, the same bits. (Its time is shown, not asserted.)"""
import resource
import unittest

from support import CommandTest


class Demo(CommandTest):
    def test_demo(self):
        report = self.done("demo", "--json").json
        print(f"demo: {report['time_ms'] / 1e3:.1f} s")
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, 3 * 2**30)
        self.assertTrue(report["pass"])
        self.assertEqual((report["layer"]["dim"], report["layer"]["hidden"]), (4096, 14336))
        self.assertLess(report["layer"]["peak_memory_bytes"], 1.25 * report["layer"]["packed_bytes"])
        self.assertIn(report["layer"]["storage"], ("plain bf16", "compact bf16"))
        self.assertAlmostEqual(report["layer"]["bits_per_weight"], 16 if report["layer"]["storage"] == "plain bf16" else 12,
                               delta=0.5)
        self.assertLess(report["accuracy"]["relative_error"], 4e-3)
        rows = report["rows"] + [{"tokens": t} for t in report["skipped_tokens"]]
        self.assertEqual([row["tokens"] for row in rows], [1, 16, 128, 512])
        for row in report["rows"]:
            self.assertGreaterEqual(len(row["samples_ms"]), 3)
            self.assertIn(row["limit"], ("bandwidth", "compute"))

    def test_the_words(self):
        text = self.done("demo").out
        for word in ("Llama-3-8B", "tokens", "bits a weight", "GFLOP/s", "accuracy", "same bits", "swiglu inspect"):
            self.assertIn(word, text)
        self.assertNotIn("✗", text)


if __name__ == "__main__":
    unittest.main()
