"""What a shared library exports is what its public headers declare, no more: every function of swiglu.h, and C++ names
out of namespace swiglu that stand in one of the .hpp.

usage: check_exports.py INCLUDE_FOLDER LIBRARY [has_c]
"""
import pathlib
import re
import subprocess
import sys

include, library = pathlib.Path(sys.argv[1]), sys.argv[2]
header = re.sub(r"/\*.*?\*/", "", (include / "swiglu.h").read_text(), flags=re.S)
declared = set(re.findall(r"\b(swiglu_\w+)\(", header))
words = set(re.findall(r"\w+", "".join(re.sub(r"//.*", "", p.read_text()) for p in include.glob("*.hpp"))))
lines = subprocess.run(["nm", "-D", "--defined-only", "--demangle", library], check=True, capture_output=True,
                       text=True).stdout.splitlines()
symbols = [line.split(maxsplit=2)[2] for line in lines]
# Sanitizers add their own.
symbols = [s for s in symbols if not s.startswith(("__odr_asan", "__asan", "__tsan", "__ubsan"))]
functions = {s for s in symbols if re.fullmatch(r"swiglu_\w+", s)}
faults = []
if len(sys.argv) > 3 and functions != declared:
    faults.append(f"only in swiglu.h: {sorted(declared - functions)}; only in the library: {sorted(functions - declared)}")
for symbol in sorted(set(symbols) - functions):
    name = re.sub(r"^(typeinfo name|typeinfo|vtable) for ", "", symbol)
    path = re.sub(r"\(.*|\[abi:\w+\]", "", name)  # without arguments
    parts = re.sub(r"operator\W+$", "operator", path).split("::")
    if parts[0] != "swiglu" or len(parts) < 2 or not {p.lstrip("~") for p in parts} <= words:
        faults.append(f"no public header declares {symbol}")
if len(symbols) < 10:
    faults.append(f"expected a front door, found {symbols}")
print("\n".join(faults) or f"{len(functions)} C functions, {len(symbols) - len(functions)} C++ symbols, all declared")
sys.exit(1 if faults else 0)
