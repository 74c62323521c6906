"""The documents tell the truth about this version: the README quotes the examples exactly, every
command and flag that a document names is in the command's own help, every ./dev command exists, and
every relative link leads somewhere.

usage: SWIGLU_BIN=... check_readme.py SOURCE_FOLDER
"""
import os
import pathlib
import re
import sys

from program_help import said, words_of

root = pathlib.Path(sys.argv[1]).resolve()
swiglu = os.environ["SWIGLU_BIN"]
documents = [p for p in sorted([*root.glob("*.md"), *(root / "docs").glob("*.md")])]
faults = []


def commands_of(program):
    """Its help, and the flags of its commands."""
    help = said(program, "--help")
    names = set(re.findall(r"^  ([a-z]+)\s{2,}\S", help, re.M)) - {"swiglu"}
    return help, {name: words_of(said(program, name, "--help")) for name in names}


top, flags = commands_of(swiglu)
commands = set(flags)
ranks = os.environ.get("SWIGLU_MPI_BIN")  # a build without MPI cannot look at what is said of swiglu-mpi
rank_top, rank_flags = commands_of(ranks) if ranks else ("", {})
if not {"demo", "run", "verify"} <= commands:
    faults.append(f"swiglu --help: expected the commands, found {sorted(commands)}")
dev_help = said(str(root / "dev"))
examples = {p.name: p.read_text() for p in sorted((root / "examples").glob("*.c*"))}
readme = (root / "README.md").read_text()
if f"```cpp\n{examples['block.cpp']}```" not in readme:
    faults.append("README.md: the C++ example differs from examples/block.cpp")
for path in documents:
    for quoted in re.findall(r"^```c(?:pp)?\n(.*?)^```$", path.read_text(), re.M | re.S):
        if not any(quoted in text for text in examples.values()):
            faults.append(f"{path.name}: no example holds these lines: {quoted.splitlines()[0]} …")

for path in documents:
    text = path.read_text()
    name = path.relative_to(root).as_posix()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        target = target.split("#")[0]
        if target and "://" not in target and not (path.parent / target).exists():
            faults.append(f"{name}: link to {target}, which does not exist")
    # Code spans and the lines of code blocks; a backslash at the end of a line continues it.
    blocks = re.findall(r"^(```+)(\w*)\n(.*?)^\1$", text, re.M | re.S)
    pieces = [line for _, language, body in blocks if language not in ("c", "cpp", "cmake", "python")
              for line in body.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^(```+).*?^\1$", "", text, flags=re.M | re.S)
    spans = re.findall(r"`([^`]+)`", prose)
    known_flags = set().union(*flags.values(), words_of(top), *rank_flags.values(),
                                () if ranks else ("--wire", "--timeout"))
    for piece in pieces + spans:
        piece = " ".join(piece.split("#")[0].split())
        for program, command, rest in re.findall(r"(?:^|[\s=/])(swiglu(?:-mpi)?) ([a-z]+)\b([^|;&]*)", piece):
            if program == "swiglu-mpi" and not ranks:
                continue
            known = flags if program == "swiglu" else rank_flags
            if command not in known:
                faults.append(f"{name}: `{program} {command}` is not in {program} --help")
                continue
            for flag in words_of(rest):
                if flag not in known[command]:
                    faults.append(f"{name}: {program} {command} --help does not know {flag}")
        for use in re.findall(r"\./dev\b((?: [a-z]+)*)", piece):
            if use and f"./dev{' '.join(['', *use.split()[:1]])}" not in dev_help:
                faults.append(f"{name}: `./dev{use}` is not in the help of ./dev")
    for span in spans:  # a flag alone, as in `--eps`
        if re.fullmatch(r"--[a-z][\w-]*( .*)?", span) and span.split()[0] not in known_flags:
            faults.append(f"{name}: no command knows {span.split()[0]}")
print("\n".join(faults) or f"{len(documents)} documents: commands {', '.join(sorted(commands))}")
sys.exit(1 if faults else 0)
