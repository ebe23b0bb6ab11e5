"""A process closes the descriptors that it inherited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfcluster

_CLOSE_FROM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tfcluster.agent.processes import close_from
closed = []
os.closerange = lambda *numbers: closed.append(numbers)
if sys.argv[2] == "no proc":
    os.listdir = lambda folder: os.stat("/no/such")
for number in (3, 4, 40, 900):
    os.dup2(0, number)
close_from(4)
print([int(n) for n in (3, 4, 40, 900) if os.path.exists(f"/proc/self/fd/{n}")], closed)
"""


def _run_close_from(how: str) -> str:
    launcher = str(Path(tfcluster.__file__).parents[1])
    argv = [sys.executable, "-c", _CLOSE_FROM, launcher, how]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.mark.linux("/proc/self/fd")
def test_only_open_descriptors_are_closed() -> None:
    assert _run_close_from("proc") == "[3] []"


@pytest.mark.linux("/proc/self/fd shows the outcome")
def test_without_proc_every_number_is_closed() -> None:
    assert _run_close_from("no proc") == f"[3, 4, 40, 900] [(4, {os.sysconf('SC_OPEN_MAX')})]"
