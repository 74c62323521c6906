"""Every line of the list of malformed inputs is a test: some file under tests/ names its id (`// S07`).

The list's ids are known by range, since the page itself is no part of the project."""
import pathlib
import re
import sys

RANGES = {"S": (1, 64), "I": (1, 23), "G": (1, 74), "P": (0, 78), "M": (1, 20), "N": (1, 50)}

root = pathlib.Path(sys.argv[1])
text = "\n".join(path.read_text() for path in sorted((root / "tests").rglob("*"))
                 if path.suffix in {".cc", ".h", ".py"} and path.name != pathlib.Path(__file__).name)
named = set(re.findall(r"\b(?:[SIGPMN]\d\d|X\d)\b", text))
wanted = [f"{letter}{number:02}" for letter, (first, last) in RANGES.items() for number in range(first, last + 1)]
wanted += [f"X{number}" for number in range(1, 9)]
missing = [name for name in wanted if name not in named]
print("no test under tests/ names " + ", ".join(missing) if missing else f"{len(wanted)} lines, all tested")
sys.exit(1 if missing else 0)
