"""The words of the command line: help, versions, usage errors, `width`."""
import re
import unittest

from support import CommandTest, swiglu

FLAGS = {
    "demo": {"--threads", "--json"},
    "inspect": {"--stats", "--json"},
    "run": {"--expert", "--layer", "--input", "-o", "--output", "--part", "--compute", "--storage", "--numerics", "--threads",
            "--dtype", "--input-dtype", "--eps", "--hidden", "--map"},
    "verify": {"--expert", "--layer", "--input", "--threads", "--compute", "--map", "--json"},
    "compare": {"--expert", "--layer", "--input", "--allow-rounding", "--threads", "--eps", "--hidden", "--json"},
    "pack": {"--expert", "--layers", "--compute", "--storage", "--threads", "--eps", "--hidden", "-o", "--output"},
    "convert": {"--format", "--shards", "--dtype", "--layers", "--expert", "--all", "--eps", "--hidden"},
    "synth": {"--preset", "--dim", "--hidden", "--layers", "--format", "--shards", "--dtype", "--seed", "-o", "--output"},
    "bench": {"--expert", "--layer", "--preset", "--dim", "--hidden", "--eps", "--map", "--dtype", "--tokens", "--threads", "--compute",
              "--isa", "--storage", "--neighbours", "--json", "--svg"},
    "width": {"--dim", "--multiple-of", "--ffn-dim-multiplier"},
}


class Help(CommandTest):
    def test_lists_exactly_the_commands(self):
        text = self.done("--help").out
        listed = re.findall(r"^  ([a-z]+)  ", text.split("Subcommands:")[1], re.M)
        self.assertEqual(listed, list(FLAGS))
        self.assertEqual(set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)), {"-h", "--help", "--version"})

    def test_each_command_lists_exactly_its_flags_and_an_example(self):
        for command, flags in FLAGS.items():
            text = self.done(command, "--help").out
            listed = re.findall(r"^  (-[^ ]*)", text, re.M)
            self.assertEqual({flag for entry in listed for flag in entry.split(",")}, flags | {"-h", "--help"}, command)
            own = re.sub(rf"swiglu (?!{command}\b)[a-z]+ .*", "", text)  # an example may go on with another command
            self.assertTrue(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", own)) <= flags | {"--help"}, command)
            self.assertRegex(text, rf"(?m)^  (SWIGLU_ISA=\w+ )?swiglu {command}", command)

    def test_version(self):
        self.assertRegex(self.done("--version").out, r"^swiglu \d+\.\d+\.\d+\n$")


class Usage(CommandTest):
    def test_the_nearest_command_and_flag_are_named(self):
        self.refused(2, ["verfy", "did you mean 'verify'"], "verfy")
        self.refused(2, ["insepct", "did you mean 'inspect'"], "insepct")
        self.refused(2, ["frobnicate", "--help"], "frobnicate")
        self.refused(2, ["--layr", "did you mean '--layer'"], "run", "m", "--layr", 1)
        self.refused(2, ["verify", "--storage"], "verify", "m", "--storage", "plain")

    def test_bad_flags(self):
        run = ("run", "m", "--input", "x.npy", "-o", self.folder / "y.npy")
        for words, arguments in [
            (["demo", "--help"], []),
            (["--layer"], run),
            (["--layer", "'one'"], [*run, "--layer", "one"]),
            (["--layer", "'-1'"], [*run, "--layer", "-1"]),
            (["--layer", "'1.5'"], [*run, "--layer", "1.5"]),
            (["--layer", "99999999999999999999"], [*run, "--layer", "99999999999999999999"]),
            (["--part", "block, ffn", "'all'"], [*run, "--layer", "0", "--part", "all"]),
            (["--compute", "bf16", "'int8'"], [*run, "--layer", "0", "--compute", "int8"]),
            (["--storage", "automatic, plain, compact", "'tight'"], [*run, "--layer", "0", "--storage", "tight"]),
            (["--numerics", "--storage"], [*run, "--layer", "0", "--numerics", "meta", "--storage", "plain"]),
            (["--numerics", "fused, meta"], [*run, "--layer", "0", "--numerics", "exact"]),
            (["--numerics", "--compute"], [*run, "--layer", "0", "--numerics", "meta", "--compute", "f32"]),
            (["--dtype", "f64", "'i8'"], [*run, "--layer", "0", "--dtype", "i8"]),
            (["--input-dtype", "bf16"], [*run, "--layer", "0", "--input-dtype", "f32"]),
            (["--threads", "'0'"], [*run, "--layer", "0", "--threads", "0"]),
            (["--eps", "'-1'"], [*run, "--layer", "0", "--eps", "-1"]),
            (["--eps", "'nan'"], [*run, "--layer", "0", "--eps", "nan"]),
            (["--hidden", "'0'"], [*run, "--layer", "0", "--hidden", "0"]),
            (["--layer", "more"], ["verify", "m", "--layer", "more"]),
            (["--layer", "more"], ["compare", "m", "n", "--layer", "more"]),
            (["--preset"], ["synth", "-o", self.folder / "m"]),
            (["--preset", "--dim"], ["synth", "--preset", "llama-3-8b", "--dim", "8", "-o", self.folder / "m"]),
            (["llama-9", "llama-3-8b"], ["synth", "--preset", "llama-9", "-o", self.folder / "m"]),
            (["--format", "hf, meta, gguf", "'ggml'"], ["synth", "--dim", 8, "--hidden", 8, "--format", "ggml", "-o", "m"]),
            (["--shards", "'0'"], ["synth", "--dim", 8, "--hidden", 8, "--shards", 0, "-o", self.folder / "m"]),
            (["--seed", "'-1'"], ["synth", "--dim", 8, "--hidden", 8, "--seed", "-1", "-o", self.folder / "m"]),
            (["not expected"], ["width", "--dim", 8, "extra"]),
        ]:
            with self.subTest(arguments=arguments):
                self.refused(2, words, *arguments)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_control_characters_do_not_reach_the_terminal(self):
        self.refused(2, ["\\x1b[31m"], "\x1b[31mrun")

    def test_the_environment(self):
        for name, value in (("SWIGLU_ISA", "sse9"), ("SWIGLU_THREADS", "many")):
            outcome = swiglu("demo", env={name: value})
            self.assertEqual(outcome.code, 2, outcome.err)
            self.assertIn(value, outcome.err)

    def test_a_full_standard_output_is_an_error(self):
        import os
        import subprocess
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        with open("/dev/full", "w") as full:
            done = subprocess.run([os.environ["SWIGLU_BIN"], "width", "--dim", "64"], stdout=full, stderr=subprocess.PIPE,
                                  text=True)
        self.assertEqual(done.returncode, 4)
        self.assertEqual(done.stderr.count("\n"), 1)


class Width(CommandTest):
    def test_published_widths(self):
        # dim, multiple_of, multiplier -> hidden; the last ones tell double from decimal arithmetic apart.
        for dim, multiple_of, multiplier, hidden in [
            (4096, 256, None, 11008), (4096, 1024, "1.3", 14336), (8192, 4096, "1.3", 28672),
            (16384, 4096, "1.2", 53248), (2048, 256, "1.5", 8192), (3072, 256, None, 8192), (64, 4, None, 172),
            (64, 2, "1.4", 238), (512, 2, "1.4", 1910), (64, 2, "2.3", 390), (1024, 4, "1.3", 3552),
        ]:
            flags = ["--multiple-of", multiple_of] + (["--ffn-dim-multiplier", multiplier] if multiplier else [])
            self.assertEqual(self.done("width", "--dim", dim, *flags).out, f"{hidden}\n")
        self.assertEqual(self.done("width", "--dim", 4096).out, "11008\n")

    def test_refuses_what_has_no_width(self):
        for flags in (["--dim", 0], ["--dim", "-4"], ["--dim", "64", "--multiple-of", 0], ["--dim", 2**63],
                      ["--dim", 2**62], ["--dim", 64, "--ffn-dim-multiplier", 0], ["--dim", 64, "--ffn-dim-multiplier", "inf"],
                      ["--dim", 64, "--ffn-dim-multiplier", "1e-9"], ["--dim", 64, "--ffn-dim-multiplier", "-1"], []):
            self.refused(2, [], "width", *flags)


if __name__ == "__main__":
    unittest.main()
