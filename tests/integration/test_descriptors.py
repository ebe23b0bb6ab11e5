"""Many tasks need more open files than a shell gives; the tasks get what the shell gives."""

from __future__ import annotations

from .commandline import CommandLine

TASKS = 40
SOFT = 100
"""The agent alone needs five files a task."""


def test_more_tasks_than_the_soft_limit_has_files_for(shell: CommandLine) -> None:
    job = {"command": ["sh", "-c", "echo limit $(ulimit -Sn)"]}
    spec = shell.spec("many.json", job, workers=TASKS)
    done = shell.shell(f"ulimit -Sn {SOFT}; tfcluster up {spec.name}")
    assert done.code == 0, done.err
    lines = done.out.decode().splitlines()
    assert sorted(line.partition("│ ")[2] for line in lines) == [f"limit {SOFT}"] * TASKS
