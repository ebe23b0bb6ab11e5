"""The script of docs/guides/python_api.md trains as it is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .jobs.lab import ROOT, Lab, a_lab

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with a_lab() as made:
        yield made


def test_the_script_prints_the_loss_and_the_path_of_the_checkpoint(lab: Lab) -> None:
    page = (ROOT / "docs/guides/python_api.md").read_text()
    (script, *_) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    path = lab.line.script("train.py", script)

    done = subprocess.run(
        [sys.executable, path],
        env=lab.line.env,
        cwd=lab.line.cwd,
        capture_output=True,
        text=True,
        timeout=380,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    assert set(re.findall(r"^(\S+) step", done.stdout, re.MULTILINE)) == {"worker:0", "worker:1"}
    *_, loss, checkpoint = done.stdout.splitlines()
    assert 0 < float(loss.removeprefix("loss ")) < 2.5
    assert Path(checkpoint.removeprefix("checkpoint ")).with_suffix(".index").is_file()
