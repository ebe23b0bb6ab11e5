"""Make an environment for the tests without pinned dependencies: `make test-lowest` and the like.

Runs in `.venv-release`, which has uv. The test tools are those of constraints/newest.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = f"{Path(sys.executable).parent}/uv"
KINDS = {
    "lowest": ("--python", "3.11", "--resolution", "lowest-direct"),
    "prereleases": ("--python", sys.executable, "--prerelease", "allow"),
}
"""Kind → the options of uv that choose releases, after those of its Python."""
TEST_TOOLS = (
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "httpx", "jsonschema", "pyte"),
    *("prometheus-client", "trustme", "hatchling", "build", "ipykernel", "nbclient"),
    *("kubernetes-validate", "ruff", "pre-commit", "numpy"),
)


def main() -> int:
    """Install tfcluster, all extras for users but TensorFlow, and the test tools."""
    folder, kind = sys.argv[1:]
    _, python, *choice = KINDS[kind]
    pins = re.sub(r" \\\n +--hash=\S+", "", (ROOT / "constraints" / "newest.txt").read_text())
    names = "|".join(map(re.escape, TEST_TOOLS))
    subprocess.run(
        [UV, "venv", "--quiet", "--clear", "--seed", "--python", python, folder], check=True
    )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as tools:
        tools.write("\n".join(re.findall(rf"^(?:{names})==.*", pins, re.MULTILINE)))
        tools.flush()
        install = [UV, "pip", "install", "--quiet", "--python", f"{folder}/bin/python", *choice]
        wanted = ["--requirement", tools.name, "--editable", ".[ui,kubernetes]"]
        subprocess.run([*install, *wanted], check=True, cwd=ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
