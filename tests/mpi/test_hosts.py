"""Ranks on two hosts: two network namespaces with a hostname and temporary files each, joined by one virtual
cable, TCP only. Across it the bytes of one process come out, and a cable that is cut ends the command.

Needs root and Open MPI; where namespaces are refused it says so in one line and skips.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest  # noqa: E402

BINARY = os.environ.get("SWIGLU_MPI_BIN", "")
if not os.path.isfile(BINARY):
    raise SystemExit(f"set SWIGLU_MPI_BIN to the swiglu-mpi command (found '{BINARY}')")

TIMEOUT = 4  # seconds a rank waits for another
# From the cut to the end of mpirun: what is in the sockets' buffers keeps a rank busy for up to 1 s; then it waits
# TIMEOUT, asks the others for 2 s how they end, gives its words 1.5 s, and an mpirun that waits for ever for the
# daemon it cannot reach 5 s (its orderly end takes 2 s). Twice that, for a busy machine.
SECONDS_TO_END = 2 * (1 + TIMEOUT + 2 + 1.5 + 5)
# The host that was cut off goes through the same steps by itself, at most as late again.
SECONDS_TO_LEAVE = SECONDS_TO_END


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)


def why_not():
    """One line, or nothing where two hosts can be made."""
    for tool in ("ip", "unshare", "hostname", "mpirun"):
        if shutil.which(tool) is None:
            return f"needs the program {tool}"
    if "Open MPI" not in run("mpirun", "--version").stdout:
        return "needs Open MPI's mpirun"
    name = f"swiglu-{os.getpid()}-try"
    tried = run("ip", "netns", "add", name)
    if tried.returncode == 0:
        tried = run("ip", "-n", name, "link", "add", "cable", "type", "veth", "peer", "name", "other")
        if tried.returncode == 0:
            tried = run("ip", "netns", "exec", name, "unshare", "-u", "hostname", "try")
        run("ip", "netns", "del", name)
    if tried.returncode != 0:
        return "needs root and namespaces: " + " ".join(tried.stderr.split())
    return ""


class Host:
    """A network namespace and what lives in it."""

    def __init__(self, letter, address):
        self.name, self.address = f"swiglu-{os.getpid()}-{letter}", address

    def ip(self, *arguments):
        done = run("ip", "-n", self.name, *arguments)
        if done.returncode != 0:
            raise RuntimeError(f"ip {arguments}: {done.stderr}")
        return done.stdout

    def processes(self):
        """Process number to command line."""
        found = {}
        for pid in run("ip", "netns", "pids", self.name).stdout.split():
            try:
                found[int(pid)] = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                pass  # ended meanwhile
        return found

    def received(self):
        """Bytes that came over the cable."""
        return json.loads(self.ip("-j", "-s", "link", "show", "cable"))[0]["stats64"]["rx"]["bytes"]

    def kill(self):
        deadline = time.monotonic() + 10
        while (living := self.processes()) and time.monotonic() < deadline:
            for pid in living:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)

    def remove(self):
        """After a failure too. First what lives in it, or the namespace would live on without a name."""
        self.kill()
        run("ip", "netns", "del", self.name)


class Hosts(CommandTest):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            raise unittest.SkipTest(reason)

    def setUp(self):
        super().setUp()
        self.hosts = [Host("a", "10.77.0.1"), Host("b", "10.77.0.2")]
        for host in self.hosts:
            made = run("ip", "netns", "add", host.name)
            self.assertEqual(made.returncode, 0, made.stderr)
            self.addCleanup(host.remove)
        a, b = self.hosts
        a.ip("link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b.name)
        for host in self.hosts:
            host.ip("address", "add", f"{host.address}/24", "dev", "cable")
            host.ip("link", "set", "lo", "up")
            host.ip("link", "set", "cable", "up")
        # Stands for ssh: Open MPI calls it with a host and the command that starts its daemon there.
        self.agent = self.folder / "agent"
        self.agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {b.name} unshare -u sh -c "hostname host-b; $*"\n')
        self.agent.chmod(0o755)
        self.out, self.err = self.folder / "out", self.folder / "err"

    def start(self, ranks, *arguments):
        """mpirun on host a, with so many ranks on each host. Output goes to files: a daemon that outlives mpirun
        would keep a pipe open."""
        machines = self.folder / "machines"
        machines.write_text("".join(f"{host.address} slots={n}\n" for host, n in zip(self.hosts, ranks)))
        unwanted = ("SWIGLU_ISA", "SWIGLU_THREADS")
        environment = {k: v for k, v in os.environ.items() if k not in unwanted and not k.startswith("OMPI_")}
        with open(self.out, "w") as out, open(self.err, "w") as err:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.hosts[0].name, "unshare", "-u", "sh", "-c", 'hostname host-a; exec "$@"',
                 "sh", "mpirun", "--allow-run-as-root", "--hostfile", machines, "--mca", "plm_rsh_agent", self.agent,
                 "--mca", "btl", "tcp,self", "--bind-to", "none", "-n", str(sum(ranks)), BINARY, *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env={**environment, "TMPDIR": str(self.folder)})
        self.addCleanup(process.wait)
        self.addCleanup(self.hosts[0].kill)  # comes before that
        return process

    def said(self):
        return f"stdout: {self.out.read_text()}\nstderr: {self.err.read_text()}"

    def ended(self, process, seconds):
        """The exit code."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            living = [host.processes() for host in self.hosts]
            self.fail(f"mpirun has not ended after {seconds} s\n{self.said()}\nalive: {living}")

    def left_alone(self, seconds):
        deadline = time.monotonic() + seconds
        while any(living := [host.processes() for host in self.hosts]):
            self.assertLess(time.monotonic(), deadline, f"still alive: {living}\n{self.said()}")
            time.sleep(0.1)

    def received_on_a(self, process, wanted):
        """Waits until so many bytes have come from the other host."""
        deadline = time.monotonic() + 120
        while self.hosts[0].received() < wanted:
            self.assertIsNone(process.poll(), f"ended before the cut\n{self.said()}")
            self.assertLess(time.monotonic(), deadline, f"too little traffic\n{self.said()}")
            time.sleep(0.01)

    def layer(self, dim, hidden, tokens):
        model, x = self.folder / "model", self.folder / "x.npy"
        self.done("synth", "--dim", dim, "--hidden", hidden, "--layers", 1, "-o", model)
        np.save(x, np.random.default_rng(7).standard_normal((tokens, dim), np.float32))
        return model, "--layer", 0, "--input", x

    def test_two_hosts_give_the_bytes_of_one_process(self):
        tokens, dim = 300, 512
        layer = self.layer(dim, 1100, tokens)
        alone, together = self.folder / "alone.npy", self.folder / "together.npy"
        self.done("run", *layer, "-o", alone)
        for ranks in ((1, 1), (2, 1), (2, 2)):
            with self.subTest(ranks=ranks):
                before = self.hosts[0].received()
                process = self.start(ranks, "run", *layer, "-o", together, "--timeout", 60)
                self.assertEqual(self.ended(process, 240), 0, self.said())
                self.assertTrue(together.read_bytes() == alone.read_bytes(), "other bytes")
                together.unlink()
                # The other host's share of the sum came over the cable; Open MPI's own talk is 6 kB.
                self.assertGreater(self.hosts[0].received() - before, tokens * dim * 4)
                self.left_alone(10)

    def ends_after_the_cut(self, process, words, output):
        """With an error, in time, with one line that names who was cut off, and leaves nothing behind."""
        self.assertNotEqual(self.ended(process, SECONDS_TO_END), 0, self.said())
        lines = re.findall("swiglu: error: .*", self.err.read_text())  # Open MPI may put words of its own before it
        self.assertEqual(len(lines), 1, self.said())
        self.assertRegex(lines[0], rf"error: {words} gave no answer for {TIMEOUT} s\b")
        self.assertFalse(output.exists())
        self.left_alone(SECONDS_TO_LEAVE)

    def test_a_cut_cable_ends_a_run(self):
        output = self.folder / "y.npy"
        # A slow cable, so that the cut comes in the middle of the sums whatever the machine: 4 MB at 4 MB/s.
        for host in self.hosts:
            slowed = run("tc", "-n", host.name, "qdisc", "add", "dev", "cable", "root", "tbf", "rate", "32mbit",
                         "burst", "32kb", "latency", "200ms") if shutil.which("tc") else None
            if slowed is None or slowed.returncode != 0:
                self.skipTest("needs tc and the kernel's tbf to slow a cable down")
        process = self.start((1, 1), "run", *self.layer(512, 300, 2048), "-o", output, "--timeout", TIMEOUT)
        self.received_on_a(process, 1_500_000)
        self.hosts[0].ip("link", "set", "cable", "down")
        self.ends_after_the_cut(process, "rank 0: rank 1", output)

    def test_packets_that_vanish_end_a_measurement(self):
        output = self.folder / "bench.json"
        process = self.start((2, 1), "bench", "--dim", 1024, "--hidden", 4096, "--tokens", "1,16", "--timeout", TIMEOUT,
                             "--json", output)
        self.received_on_a(process, 1_000_000)
        # Both ends now send to a network card that is not there; the link stays up, as behind a dead switch.
        for host, other in (self.hosts, self.hosts[::-1]):
            host.ip("neighbour", "replace", other.address, "lladdr", "02:00:00:00:00:99", "dev", "cable",
                    "nud", "permanent")
        self.ends_after_the_cut(process, "rank [01]: rank 2", output)  # whichever of the two waited first


if __name__ == "__main__":
    unittest.main()
