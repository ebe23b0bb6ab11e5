"""A function reaches other hosts with what it uses, and its value comes back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .office import HANG_S, Office, import_path

pytestmark = pytest.mark.slow

DRIVE = """
import json, os, sys
import beside
import tfcluster

class Answer:
    def __init__(self, text): self.text = text

def ask(number, fails=False):
    if fails and number:
        raise ValueError("no answer")
    return Answer(f"{beside.WORD} {number} {os.uname().nodename} {os.path.exists('.git')}")

options = {"hosts": sys.argv[1], "python": sys.executable}
print(tfcluster.run(ask, args=(42,), **options).value.text)
try:
    tfcluster.run(ask, args=(1,), kwargs={"fails": True}, **options)
except tfcluster.JobFailed as error:
    print(error.message)
print(sorted(os.listdir(".")))
"""


def test_a_function_runs_on_hosts_and_returns_a_value(office: Office) -> None:
    hosts = office.add_hosts(2)
    office.write("drive.py", DRIVE)
    office.write("beside.py", "WORD = 'answer'")
    office.write(".gitignore", ".*/\n__pycache__/\n")
    subprocess.run(["git", "init", "-q"], cwd=office.desk, check=True)
    command = f"cd ~/{office.desk.name} && exec {sys.executable} drive.py "
    process = office.home.start(
        ["sh", "-c", command + ",".join(host.address for host in hosts)],
        env={"PYTHONPATH": import_path(), "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = process.communicate(timeout=HANG_S)
    lines = said.splitlines()
    assert lines[0] == f"answer 42 {hosts[0].name} False", said
    assert "ValueError: no answer (drive.py:11)" in said
    assert lines[-1] == "['.git', '.gitignore', 'beside.py', 'drive.py']"
