"""libswiglu_mpi also works with MPICH: its sources are compiled by MPICH's compiler against the built library, and the
ranks of swiglu_rank_bits give the bits of one process.

usage: check_mpich.py SOURCE_FOLDER LIBRARY_FOLDER
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

source, libraries = map(pathlib.Path, sys.argv[1:])
compiler, launcher = shutil.which("mpicxx.mpich"), shutil.which("mpiexec.mpich")
if not compiler or not launcher:
    print("skipped: MPICH is not installed")
    sys.exit(77)


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


with tempfile.TemporaryDirectory(prefix="swiglu-mpich-") as folder:
    program = pathlib.Path(folder) / "rank_bits"
    run(compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-ffp-contract=off", "-DFMT_HEADER_ONLY",
        "-I", source / "include", "-I", source / "src", *sorted((source / "src" / "mpi").glob("*.cc")),
        source / "tests" / "mpi" / "rank_bits.cc", "-L", libraries, "-lswiglu", f"-Wl,-rpath,{libraries}", "-pthread",
        "-o", program)
    for ranks in (1, 2, 3, 8):
        out = run(launcher, "-n", ranks, program)
        if not out.startswith(f"{ranks} ranks: ") or not out.endswith(" 0 different\n"):
            sys.exit(f"expected {ranks} ranks and no difference, found {out!r}")
        print(out, end="")
