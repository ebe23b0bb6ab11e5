"""The wheel as a user installs it: on every Python, and in the isolation of `uvx`."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from tools.make_venv import find_python

from .archives import metadata, wheel
from .commands import ROOT, TOOLS, Failed, NotRun, install, run, say

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
FIRST_OF_LAUNCHER = (3, 11)
_INSTALLS = re.compile(
    r"^```console\n(\$ pip install 'tfcluster(\[\w+\])?'.*?)^```$", re.DOTALL | re.MULTILINE
)
_SCRIPT = """
import json, os
task = json.loads(os.environ["TF_CONFIG"])["task"]
print("task", task["type"], task["index"])
"""


def check_installs() -> str:
    """Install the wheel into every Python and use it. Raises Failed, or NotRun without a Python."""
    missing = []
    for version in PYTHONS:
        python = find_python("", version, version)
        if python is None:
            missing.append(version)
            continue
        with tempfile.TemporaryDirectory(prefix="tfc-") as name:
            folder = Path(name)
            bin_folder = install(folder / "env", python, str(wheel()))
            if tuple(map(int, version.split("."))) < FIRST_OF_LAUNCHER:
                what = _check_workers(bin_folder)
            else:
                what = _check_launcher(bin_folder, folder)
            say(f"    Python {version}: {what}")
    if missing:
        raise NotRun(f"no Python {', '.join(missing)}; the others are OK")
    return f"Python {', '.join(PYTHONS)}"


def _check_launcher(bin_folder: Path, folder: Path) -> str:
    env = {"TFCLUSTER_HOME": str(folder / "home"), "VIRTUAL_ENV": str(bin_folder.parent)}

    def tfcluster(*words: str) -> str:
        return run(bin_folder / "tfcluster", *words, cwd=folder, env=env)

    _expect(metadata(wheel())["Version"], tfcluster("--version"))
    _expect("### Killed by SIGKILL", tfcluster("help", "failures#sigkill"))
    templates = [one["name"] for one in json.loads(tfcluster("init", "--list", "--json"))]
    for name in templates:
        tfcluster("init", f"{name}.json", "--template", name)
        tfcluster("validate", f"{name}.json")
    (folder / "hello.py").write_text(_SCRIPT)
    output = tfcluster("run", "-n", "2", "hello.py")
    for index in (0, 1):
        _expect(f"task worker {index}", output)
    return f"{len(templates)} example specs are valid, 2 tasks ran"


def _check_workers(bin_folder: Path) -> str:
    python = bin_folder / "python"
    (packages,) = (bin_folder.parent / "lib").glob("python3*/site-packages")
    for_tasks = (packages / "tfcluster_workers", packages / "tfcluster" / "agent")
    run(python, "-m", "compileall", "-q", *for_tasks)
    run(python, "-c", "import tfcluster_workers.evaluator, tfcluster_workers.data_service")
    installed = json.loads(run(TOOLS / "uv", "pip", "list", "--python", python, "--format", "json"))
    if surplus := {one["name"] for one in installed} - {"tfcluster"}:
        raise Failed(f"{python}: the package for tasks brings {', '.join(sorted(surplus))}")
    run(bin_folder / "tfcluster", "--version", codes=(3,))
    return "tfcluster_workers can be imported, and the command asks for a newer Python"


def run_example() -> str:
    """Run the README's first example from the wheel with `uvx`, with TensorFlow. Raises Failed."""
    extras, commands = example((ROOT / "README.md").read_text(encoding="utf-8"))
    package = f"tfcluster{extras} @ file://{wheel()}"
    with tempfile.TemporaryDirectory(prefix="tfc-") as name:
        folder = Path(name)
        env = {
            **{"TFCLUSTER_HOME": f"{folder}/home", "HOME": str(folder)},
            **{"UV_CACHE_DIR": run(TOOLS / "uv", "cache", "dir").strip()},
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        for words in commands:
            uvx = (TOOLS / "uvx", "--quiet", "--python", sys.executable, "--from", package)
            output = run(*uvx, *words, cwd=folder, env=env)
            say("\n".join(f"    {line}" for line in output.splitlines()[-6:]))
    return f"uvx --from 'tfcluster{extras}': {'; '.join(' '.join(words) for words in commands)}"


def example(readme: str) -> tuple[str, list[list[str]]]:
    """Return the extras and the commands of the README's first block that installs tfcluster."""
    block = _INSTALLS.search(readme)
    if block is None:
        raise Failed("README.md has no block that begins with `$ pip install 'tfcluster'`")
    lines = [line.partition("#")[0].split()[1:] for line in block[1].splitlines()]
    return block[2] or "", [words for words in lines if words[0] == "tfcluster"]


def _expect(part: str, output: str) -> None:
    if part not in output:
        raise Failed(f"{part!r} is not in the output:\n{output[-2000:]}")
