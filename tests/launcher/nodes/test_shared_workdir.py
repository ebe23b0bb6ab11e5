"""A workdir that another machine shares is detected, and its tasks get their paths there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.agent import message_fields
from tfcluster.agent.files.outgoing import find_marked_folder
from tfcluster.nodes.shared_workdirs import Mark, placed_mark
from tfcluster.plans.plan import Command, EnvVar
from tfcluster.plans.remote_paths import NodePaths

CACHE = "/home/bo/.cache/tfcluster"
WORK = "~/.cache/tfcluster/nodes/$TFCLUSTER_RUN_ID/h/work"
BUNDLE = "~/.cache/tfcluster/bundles/0123"


def find(mark: Mark, *folders: str, **changes: Any) -> str | None:
    order = msg.FindMarkedFolder(
        id=1, folders=folders, name=mark.name, text=mark.text, inode=mark.inode
    )
    return find_marked_folder(message_fields.replace(order, **changes)).folder


def test_a_folder_with_the_mark_is_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with placed_mark(tmp_path) as mark:
        assert mark is not None
        folder, other = str(tmp_path), str(tmp_path / "other")
        assert find(mark, folder) == folder
        assert find(mark, "/no/such", other, folder) == folder
        assert find(mark, other) is None
        assert find(mark, folder, text="0" * 32) is None
        assert find(mark, folder, inode=mark.inode + 1) is None
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_copied_mark_is_not_accepted(tmp_path: Path) -> None:
    """A program that synchronises files makes such copies in another folder."""
    (tmp_path / "copy").mkdir()
    with placed_mark(tmp_path) as mark:
        assert mark is not None
        (tmp_path / "copy" / mark.name).write_text(mark.text)
        assert find(mark, str(tmp_path / "copy")) is None
        (tmp_path / "copy" / mark.name).unlink()
        (tmp_path / "copy" / mark.name).symlink_to(tmp_path / mark.name)
        assert find(mark, str(tmp_path / "copy")) is None


def test_a_folder_that_is_not_writable_gets_no_mark() -> None:
    with placed_mark(Path("/proc/self/task")) as mark:
        assert mark is None


def test_a_folder_in_which_the_host_may_not_write_needs_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with placed_mark(tmp_path) as mark:
        assert mark is not None
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        assert find(mark, str(tmp_path)) is None


def test_a_folder_in_the_host_s_home_may_be_named_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "code").mkdir()
    with placed_mark(tmp_path / "code") as mark:
        assert mark is not None
        assert find(mark, "~/code") == str(tmp_path / "code")


def command() -> Command:
    words = ("~/venv", f"{BUNDLE}/boot.py", "script", f"{WORK}/a.py", "~/x", "$TFCLUSTER_RUN_ID")
    env = (
        EnvVar("PYTHONPATH", f"/lib:{BUNDLE}/workers", "job.env + tfcluster", origin="tfcluster"),
        EnvVar("TFDS_DATA_DIR", "~/data", "runtime.hosts.*.data_dir", origin="data_dir"),
        EnvVar("OWN", "~/.cache/tfcluster", "job.env"),
    )
    return Command(words, env, WORK)


def test_paths_of_tfcluster_are_adapted_to_the_node_and_user_arguments_are_not() -> None:
    there = NodePaths(CACHE, "run-1", "/home/bo/venv/bin/python").command(command())
    work = f"{CACHE}/nodes/run-1/h/work"
    boot = f"{CACHE}/bundles/0123/boot.py"
    python = "/home/bo/venv/bin/python"
    assert there.argv == (python, boot, "script", f"{work}/a.py", "~/x", "$TFCLUSTER_RUN_ID")
    assert there.cwd == work
    assert {var.name: var.value for var in there.env} == {
        "PYTHONPATH": f"/lib:{CACHE}/bundles/0123/workers",
        "TFDS_DATA_DIR": "/home/bo/data",
        "OWN": "~/.cache/tfcluster",
    }


def test_tasks_with_a_shared_folder_run_in_it() -> None:
    there = NodePaths(CACHE, "run-1", None, (WORK, "/mnt/code")).command(command())
    assert there.argv[3] == "/mnt/code/a.py"
    assert there.cwd == "/mnt/code"


@pytest.mark.parametrize(
    ("named", "agents", "becomes"),
    [
        ("python3", "/usr/bin/python3", "python3"),
        ("/opt/tf/bin/python", "/opt/real/python", "/opt/tf/bin/python"),
        ("/opt/tf", "/opt/tf/bin/python", "/opt/tf/bin/python"),
        ("~/tf/bin/python", "/home/bo/tf/bin/python", "/home/bo/tf/bin/python"),
        ("tf/bin/python", "/home/bo/tf/bin/python", "/home/bo/tf/bin/python"),
    ],
)
def test_the_path_of_a_node_s_python_is_resolved(named: str, agents: str, becomes: str) -> None:
    planned = replace(command(), argv=(named, "x"))
    assert NodePaths(CACHE, "run-1", agents).command(planned).argv == (becomes, "x")
