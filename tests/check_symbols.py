"""Each kernel translation unit exports exactly one symbol and no weak one (src/kernels/kernel.h)."""
import pathlib
import subprocess
import sys

faults = []
units = [p for p in sys.argv[1:] if pathlib.Path(p).name != "registry.cc.o"]
if len(units) < 4:
    faults.append(f"expected at least 4 kernel objects, found {len(units)}")
for unit in units:
    lines = subprocess.run(["nm", "--defined-only", "--extern-only", "--demangle", unit], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    symbols = [line.split(maxsplit=2)[1:] for line in lines if "DW.ref" not in line]
    # Sanitizer builds add their own registration symbols.
    symbols = [s for s in symbols if not s[1].startswith(("__odr_asan", "__asan", "__tsan"))]
    if len(symbols) != 1 or symbols[0][0] not in "DRB":
        faults.append(f"{pathlib.Path(unit).name}: expected one exported table, found {symbols}")
print("\n".join(faults) or f"{len(units)} units, one symbol each")
sys.exit(1 if faults else 0)
