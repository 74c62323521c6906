"""`python -m swiglu ...` is the command `swiglu ...`, which comes with the package."""
import os
import pathlib
import sys


def main() -> None:
    command = os.environ.get("SWIGLU_BIN") or str(pathlib.Path(__file__).parent / "bin" / "swiglu")
    try:
        os.execv(command, ["swiglu", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"swiglu: error: {command}: {error.strerror}")


if __name__ == "__main__":
    main()
