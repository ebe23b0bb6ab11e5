"""Masked secrets reach neither the disk nor the coordinator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfcluster.agent.catalogue import TaskOrder
from tfcluster.agent.message_fields import replace
from tfcluster.agent.tasks.output import Mask, OutputFile, drain, mask_of, open_pipe

SECRET = b"correct-horse"


@pytest.mark.parametrize("size", [1, 2, 5, 13, 1000])
def test_a_secret_is_masked_however_the_output_is_cut(size: int) -> None:
    text = b"key=" + SECRET + b" corr correct-h" + SECRET + SECRET[:-1] + b"\n"
    mask = Mask([SECRET])
    pieces = [mask.apply(text[at : at + size]) for at in range(0, len(text), size)]
    masked = b"key=******** corr correct-h********" + SECRET[:-1] + b"\n"
    assert b"".join(pieces) + mask.flush() == masked


def test_complete_lines_are_not_held_back() -> None:
    assert Mask([SECRET]).apply(b"step 1\n") == b"step 1\n"


def test_a_value_that_contains_another_is_masked_whole() -> None:
    assert Mask([b"secret", b"my-secret-key"]).apply(b"my-secret-key secret.") == (
        b"******** ********."
    )


def test_only_the_named_variables_are_masked() -> None:
    env = {"API_KEY": "s3cr3t-é", "SEED": "12345678"}
    task = TaskOrder(task="worker:0", argv=["true"], env=env, log="log")
    assert mask_of(task) is None
    mask = mask_of(replace(task, secrets=["API_KEY"]))
    assert mask is not None
    assert mask.apply("s3cr3t-é 12345678\n".encode()) == b"******** 12345678\n"


def test_all_other_output_in_a_log_file_is_unchanged(tmp_path: Path) -> None:
    log = OutputFile(str(tmp_path / "task.log"), Mask([SECRET]))
    read_end, write_end = open_pipe()
    os.write(write_end, b"one " + SECRET[:5])
    drain(read_end, log)
    os.write(write_end, SECRET[5:] + b" two\n" + SECRET[:3])
    os.close(write_end)
    drain(read_end, log)
    assert drain(read_end, log) == (0, True, b"")
    assert (tmp_path / "task.log").read_bytes() == b"one ******** two\n" + SECRET[:3]
    assert log.size == (tmp_path / "task.log").stat().st_size
    assert (tmp_path / "task.log").stat().st_mode & 0o777 == 0o600
    log.close()
    os.close(read_end)
