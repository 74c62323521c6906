"""What a program says of itself, for the checks of documents."""
import re
import subprocess
import sys


def said(*command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def words_of(text):
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))
