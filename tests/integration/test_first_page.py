"""Every command of the first page works in a fresh clone, in the order of the page."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documentation import DOCS, ROOT, blocks, unprinted

from .commandline import CommandLine

FIRST = DOCS / "index.md"


def text_of(page: Path, kind: str) -> list[str]:
    return [block.text for block in blocks(page) if block.kind == kind]


def commands(page: Path) -> list[str]:
    return [command for block in blocks(page) for command in block.commands()]


@pytest.fixture(scope="module")
def clone() -> Iterator[CommandLine]:
    """A clone of this checkout with its own home; the environments are this checkout's.

    Installing them takes minutes and is what `make setup` did before the tests. Its sources are
    made older than the environments, so that `make` finds these up to date.
    """
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    line = CommandLine(root)
    line.cwd = root / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", line.cwd], check=True)
    for name in ("constraints", "tools", "pyproject.toml"):
        path = line.cwd / name
        for file in [path, *path.rglob("*")]:
            os.utime(file, (0, 0))
    for name in (".venv", ".venv-tf215"):
        (line.cwd / name).symlink_to(ROOT / name)
    folders = (line.cwd / "launcher", line.cwd / "workers")
    line.env |= {"PYTHONPATH": os.pathsep.join(map(str, folders)), "CUDA_VISIBLE_DEVICES": "-1"}
    (script,) = text_of(FIRST, "python")
    line.script("train.py", script)
    try:
        yield line
    finally:
        line.clean_up()
        shutil.rmtree(root)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_of_the_page_succeeds_in_its_order(clone: CommandLine) -> None:
    done = clone.shell("set -e\n" + "\n".join(commands(FIRST)), timeout=580)

    printed = done.out.decode()
    assert done.code == 0, done.err[-4000:] + printed[-4000:]
    assert len(clone.runs()) == 4, "make up, run, up and up with a fault"
    assert (clone.cwd / "tfcluster.json").read_text() == text_of(FIRST, "json")[0]
    assert unprinted("guides/your_own_script.md", "open ports", done.err) == []
    assert unprinted("guides/your_own_script.md", "30/30", printed, done.err) == []
