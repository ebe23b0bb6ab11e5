"""Write the hashes of every file of each pinned release into a changed constraints file.

`python3 tools/pin_hashes.py constraints/newest.txt` asks the package index through uv, once for
each Python that has lines of its own. Standard library only. A line may begin with the environment
that its release is for (constraints/keras-nightly.txt).
"""

import re
import subprocess
import sys
from pathlib import Path

PYTHONS = ("3.14", "3.12", "3.11", "3.10", "3.9")
ENVIRONMENT = re.compile(r"\.venv\S*\s+")


def main():
    """Rewrite the files named as arguments; comments and markers stay."""
    for name in sys.argv[1:]:
        path = Path(name)
        lines = [
            line.partition(" --hash")[0].rstrip(" \\") for line in path.read_text().splitlines()
        ]
        pins = [line for line in lines if not line.lstrip().startswith("--hash")]
        known = hashes([ENVIRONMENT.sub("", line) for line in pins if line[:1] not in {"", "#"}])
        path.write_text("".join(with_hashes(line, known) for line in pins))


def with_hashes(line, known):
    """Return the line, followed by its hashes on lines of their own."""
    return " \\\n    ".join([line, *known.get(release_of(line), [])]) + "\n"


def release_of(line):
    """Return ``name==version`` of a line."""
    return ENVIRONMENT.sub("", line).partition(";")[0].strip()


def hashes(pins):
    """Return release → ``--hash=sha256:…`` of each of its files."""
    found = {}
    for python in PYTHONS:
        if not (left := [line for line in pins if release_of(line) not in found]):
            break
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--no-deps", "--no-header"]
        command += ["--generate-hashes", "--no-annotate", "--python-version", python, "-"]
        done = subprocess.run(command, input="\n".join(left), capture_output=True, text=True)
        for one in re.split(r"\n(?=\S)", done.stdout.replace("\\\n", "")):
            release, *words = re.split(r"\s*;.*?(?=--hash)|\s+", one.strip())
            found[release] = sorted(word for word in words if word.startswith("--hash="))
    if missing := [line for line in pins if not found.get(release_of(line))]:
        raise SystemExit(f"no hashes of {', '.join(missing)}: {done.stderr.strip()}")
    return found


if __name__ == "__main__":
    main()
