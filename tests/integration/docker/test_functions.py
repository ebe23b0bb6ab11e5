"""A function runs in containers without cloudpickle whose Python has the same minor version."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.lab.docker_images import STUB

from .harbor import HANG_S, Harbor

pytestmark = pytest.mark.slow

DRIVE = """
import json, sys, tfcluster

class Answer:
    def __init__(self, version): self.version = version

def ask():
    import cloudpickle
    assert "/.tfcluster/" in cloudpickle.__file__
    return Answer(list(sys.version_info[:2]))

sets = ["runtime.backend=docker", f"runtime.image={sys.argv[1]}"]
try:
    print(json.dumps(tfcluster.run(ask, sets=sets).value.version))
except tfcluster.JobFailed as error:
    print(error.message)
"""


def test_a_function_runs_in_containers(harbor: Harbor) -> None:
    script = harbor.shell.script("drive.py", DRIVE)
    argv = [sys.executable, str(script), STUB]
    where = {"cwd": harbor.shell.cwd, "env": harbor.shell.env}
    done = subprocess.run(argv, **where, capture_output=True, text=True, timeout=HANG_S)  # type: ignore[call-overload]
    version = harbor.docker("run", "--rm", STUB, "python3", "--version").split()[1]
    if version.startswith("{}.{}.".format(*sys.version_info)):
        assert json.loads(done.stdout) == [*sys.version_info[:2]], done.stderr
    else:
        assert "bytecode loads only in the same minor version" in done.stdout, done.stderr
