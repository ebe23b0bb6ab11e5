"""Make an environment for each listed Keras on an installed TensorFlow, to test the patch.

Keras 3 is pure Python, so several releases share one TensorFlow: each environment holds only its
Keras and sees the packages of the environment below it. Standard library only, any Python 3.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main():
    """Make the missing environments; complete ones stay unchanged."""
    options = _options()
    for base, requirement, *hashes in read(ROOT / options.releases):
        name, _, release = requirement.partition("==")
        release = "nightly" if name == "keras-nightly" else release
        make(ROOT / base, ROOT / options.folder / release, requirement, hashes)
    return 0


def read(path):
    """Return (environment below, requirement, hashes …) for each line except comments."""
    lines = path.read_text().replace("\\\n", "").splitlines()
    return [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#")]


def make(base, folder, requirement, hashes):
    """Make an environment with `requirement` only, which also sees the packages of `base`.

    The file of `requirement` must have one of these hashes.
    """
    python = base / "bin" / "python"
    pinned = " ".join([requirement, *hashes])
    wanted = f"{pinned} over {os.path.realpath(str(python))}\n"
    mark = folder / ".made"
    if mark.exists() and mark.read_text() == wanted:
        return
    shutil.rmtree(str(folder), ignore_errors=True)
    _run(python, "-m", "venv", "--without-pip", str(folder))
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (below,) = base.glob("lib/python3.*/site-packages")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-conflicts")
    pin = folder / "pin.txt"
    pin.write_text(f"{pinned}\n")
    only = ("--no-deps", "--require-hashes", "--target", packages, "--requirement", pin)
    _run(python, "-m", "pip", "install", *quiet, *only, tries=3)
    # Python reads this after the environment's own packages, so it finds this Keras first.
    (packages / "below.pth").write_text(f"{below}\n")
    mark.write_text(wanted)
    sys.stderr.write(f"{folder.relative_to(ROOT)}: {requirement} over {base.name}\n")


def _run(*command, tries=1):
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        if tries == 1:
            raise SystemExit("{}: failed".format(" ".join(map(str, command))))
        _run(*command, tries=tries - 1)  # a download may have broken off


def _options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--releases", required=True, help="file: environment below, requirement")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
