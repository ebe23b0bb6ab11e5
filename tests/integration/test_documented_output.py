"""Small outputs that a page shows are what a run without TensorFlow prints."""

from __future__ import annotations

from tests.documentation import unprinted

from .commandline import CommandLine

EPOCH = 'print("epoch 1/3  loss 0.4127")'


def test_lines_of_a_run_carry_the_name_of_their_task(shell: CommandLine) -> None:
    shell.script("train.py", EPOCH)
    done = shell.run("run", "-n", "2", "train.py")
    assert unprinted("guides/runs.md", "worker:1", done.out.decode()) == []
