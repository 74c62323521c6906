"""The manual pages are about this version: they name every command of the program, and no command, flag,
environment variable or exit code that it does not have; groff, where installed, finds nothing to warn of.

usage: SWIGLU_BIN=... [SWIGLU_MPI_BIN=...] check_manual.py SOURCE_FOLDER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

from program_help import said, words_of

folder = pathlib.Path(sys.argv[1]) / "packaging"
faults = []


def section(page, title):
    return re.search(rf'^\.SH "?{title}"?\n(.*?)(?=^\.SH|\Z)', page, re.M | re.S)[1]


def check(name, program):
    page = (folder / f"{name}.1").read_text().replace(r"\-", "-")
    help = said(program, "--help")
    commands = set(re.findall(r"^  ([a-z]+) {2,}\S", help, re.M))
    if "demo" not in commands:
        faults.append(f"{name} --help: expected commands, found {sorted(commands)}")
    flags = {command: words_of(said(program, command, "--help")) for command in commands}
    listed = set(re.findall(r"^\.TP\n\.B ([a-z]+)$", section(page, "COMMANDS"), re.M))
    if listed != commands:
        faults.append(f"{name}.1: expected the commands {sorted(commands)}, found {sorted(listed)}")
    for command, rest in re.findall(rf"^(?:\.B |mpirun -n \d+ )?{name} ([a-z]+)(.*)$", page, re.M):
        if command not in commands:
            faults.append(f"{name}.1: no command {command}")
        for flag in words_of(rest) - flags.get(command, set()):
            faults.append(f"{name}.1: {command} does not know {flag}")
    ours = re.sub(r"^\.B (?:pkg-config|mpirun).*|^mpirun -n|^\.\\\".*", "", page, flags=re.M)
    for flag in words_of(ours) - words_of(help).union(*flags.values()):
        faults.append(f"{name}.1: no command knows {flag}")
    known = set(re.findall(r"SWIGLU_[A-Z]+", help))
    found = set(re.findall(r"SWIGLU_[A-Z]+", section(page, "ENVIRONMENT")))
    if found != known:
        faults.append(f"{name}.1: expected the variables {sorted(known)}, found {sorted(found)}")
    status = section(page, "EXIT STATUS")
    codes = set(re.findall(r"\d(?= )", re.search(r"Exit codes: (.*?)\.", help, re.S)[1]))
    if name == "swiglu" and set(re.findall(r"^\.B (\d)$", status, re.M)) != codes:
        faults.append(f"{name}.1: expected the exit codes {sorted(codes)}")
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-ww", "-z", folder / f"{name}.1"], capture_output=True, text=True)
        if done.returncode != 0 or done.stderr:
            faults.append(f"{name}.1: {done.stderr.strip()}")


check("swiglu", os.environ["SWIGLU_BIN"])
if "SWIGLU_MPI_BIN" in os.environ:
    check("swiglu-mpi", os.environ["SWIGLU_MPI_BIN"])
print("\n".join(faults) or "the manual pages fit the program")
sys.exit(1 if faults else 0)
