"""A run of many tasks raises its own limit on open files; the tasks keep the shell's limit."""

from __future__ import annotations

from .commandline import CommandLine

TASKS = 40
SOFT = 100
"""The shell's soft limit on open files; the agent alone needs five files a task."""


def test_many_tasks_run_under_a_low_soft_limit_and_keep_it(shell: CommandLine) -> None:
    job = {"command": ["sh", "-c", "echo limit $(ulimit -Sn)"]}
    spec = shell.spec("many.json", job, workers=TASKS)
    done = shell.shell(f"ulimit -Sn {SOFT}; tfcluster up {spec.name}")
    assert done.code == 0, done.err
    lines = done.out.decode().splitlines()
    assert sorted(line.partition("│ ")[2] for line in lines) == [f"limit {SOFT}"] * TASKS


def test_a_limit_that_cannot_be_enough_is_an_error_of_the_environment(shell: CommandLine) -> None:
    spec = shell.spec("few.json", {"command": ["true"]}, workers=TASKS)
    done = shell.shell(f"ulimit -n {SOFT}; tfcluster up {spec.name}")
    assert done.code == 3, done.err
    assert "this shell allows 100 open files, and this run needs at least 180" in done.err
    assert "ulimit -n" in done.err
