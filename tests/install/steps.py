"""Steps of the programs that use what was installed: the first that fails ends them, with what it printed."""
import shlex
import subprocess
import sys


def run(*command, **extra):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **extra)
    if done.returncode != 0:
        sys.exit(f"failed ({done.returncode}): {shlex.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(truth, what):
    if not truth:
        sys.exit(f"expected {what}")
