"""Runs `tfcluster validate` or `plan` for action.yml: each problem annotates its line."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COMMANDS = ("validate", "plan")
_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<line>\d+):(?P<col>\d+))?")


def main() -> int:
    command = os.environ["TFCLUSTER_ACTION_COMMAND"]
    if command not in COMMANDS:
        sys.exit(f"the input `command` is {command!r}, not one of {', '.join(COMMANDS)}")
    specs = list(_specs(os.environ["TFCLUSTER_ACTION_SPECS"]))
    checked = _tfcluster("validate", "--json", *specs)
    sys.stderr.write(checked.stderr)
    answers = [json.loads(line) for line in checked.stdout.splitlines()]
    for answer in answers:
        for problem in answer["problems"]:
            _say(annotation(**problem))
        if answer["valid"]:
            _say(f"{answer['spec']}: OK; {answer['name']}, {answer['tasks']} tasks")
            if command == "plan":
                _summarize(answer["spec"])
    return checked.returncode


def annotation(place: str, message: str, cure: str) -> str:
    """Return the workflow command that annotates a line of a file of the repository."""
    found = _PLACE.fullmatch(place)
    assert found is not None
    where = {key: value for key, value in found.groupdict().items() if value}
    where["file"] = os.path.relpath(where["file"], os.environ.get("GITHUB_WORKSPACE", "."))
    properties = ",".join(f"{key}={_escape(value, ':,')}" for key, value in where.items())
    text = f"{message}\n→ {cure}" if cure else message
    return f"::error {properties},title=tfcluster::{_escape(text)}"


def _escape(text: str, more: str = "") -> str:
    return re.sub(rf"[%\r\n{more}]", lambda hit: f"%{ord(hit[0]):02X}", text)


def _specs(text: str) -> Iterator[str]:
    for pattern in filter(None, map(str.strip, text.splitlines())):
        found = sorted(glob.glob(pattern, recursive=True))
        yield from found or [pattern]  # `tfcluster` says that there is no such file


def _summarize(spec: str) -> None:
    planned = _tfcluster("plan", spec)
    _say(planned.stdout + planned.stderr)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            name = os.path.relpath(spec, os.environ.get("GITHUB_WORKSPACE", "."))
            file.write(f"#### {name}\n\n```text\n{planned.stdout}```\n")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _tfcluster(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tfcluster", *words]
    return subprocess.run(command, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
