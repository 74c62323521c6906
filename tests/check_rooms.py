"""Includes run downwards only (docs/design.md, "The house"), and each third-party header has one home."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
# What a room may include besides itself; "door" is include/swiglu.
MAY = {
    "base": {"door"},
    "files": {"door", "base"},
    "kernels": set(),
    "reference": {"door", "base"},
    "weights": {"door", "base", "kernels"},
    "machine": {"door", "base", "kernels"},
    "layer": {"door", "base", "kernels", "weights"},
    "mpi": {"door"},
    "capi": {"door"},
    "cli": {"door"},
    "door": {"door"},
}
HOMES = {  # header prefix -> the files that may include it
    "CLI/": {"cli/command_line.h"},
    "mpi.h": {"src/mpi/communicator.cc"},
    "nlohmann/": {"src/files/json.cc"},
    "xxhash.h": {"src/files/checksum.cc"},
    "zlib.h": {"src/files/zip.cc", "src/files/write_meta.cc"},
}
faults = []
seen = 0
for path in sorted(p for folder in ("src", "cli", "include") for p in (root / folder).rglob("*")
                   if p.suffix in {".h", ".hpp", ".cc", ".inl"}):
    relative = path.relative_to(root).as_posix()
    parts = relative.split("/")
    room = "door" if parts[0] == "include" else "cli" if parts[0] == "cli" else parts[1]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not found:
            continue
        seen += 1
        header = found.group(2)
        for prefix, homes in HOMES.items():
            if header.startswith(prefix) and relative not in homes:
                faults.append(f"{relative}:{number}: {header} belongs to {', '.join(sorted(homes))}")
        target = header.split("/")[0]
        if target == "swiglu":
            target = "door"
        elif target not in MAY or found.group(1) == "<":
            if room == "door" and found.group(1) == '"':
                faults.append(f"{relative}:{number}: the front door includes the standard library only, not {header}")
            if room == "kernels" and "/" in header and relative != "src/kernels/registry.cc":
                faults.append(f"{relative}:{number}: a kernel may not include {header}")
            continue
        if target == room:
            continue
        if relative == "src/kernels/registry.cc" and header == "base/cpu.h":
            continue
        if target not in MAY[room]:
            faults.append(f"{relative}:{number}: room '{room}' may not include {header}")
        elif target == "kernels" and header != "kernels/kernel.h":
            faults.append(f"{relative}:{number}: only kernels/kernel.h may be included from outside, not {header}")
if seen == 0:
    faults.append("no include was found at all: wrong folder?")
print("\n".join(faults) or f"{seen} includes, all downwards")
sys.exit(1 if faults else 0)
