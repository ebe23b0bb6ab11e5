"""Files are added to a folder that a task reads: in order, complete, with no other change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.agent.files.incoming import Incoming


def sha(data: bytes) -> str:
    return hashlib.sha512(data).hexdigest()


class Node:
    """The receiving half of an agent, which adds files to a task's folder."""

    def __init__(self, folder: Path) -> None:
        self.messages: list[dict[str, Any]] = []
        self.into, self.transit = folder / "run" / "node" / "checkpoints", folder / "passing"
        self.incoming = Incoming(
            str(folder / "cache"),
            lambda report: self.messages.append(report.to_json()),
            transit=str(self.transit),
        )
        self.into.mkdir(parents=True)
        (self.into / "mine").write_text("the task's own")

    def add(self, *files: tuple[str, bytes], removed: Sequence[str] = ()) -> dict[str, Any]:
        """Send an order and all bytes; return the last message."""
        entries = [
            {"path": path, "sha512": sha(data), "size": len(data), "mode": 0o600}
            for path, data in files
        ]
        order = {"id": 1, "into": str(self.into), "files": entries, "removed": [*removed]}
        self.incoming.receive(msg.Receive.read({**order, "adds": True}))
        if self.messages[-1]["type"] == "wants":
            for digest in self.messages[-1]["digests"]:
                data = next(data for _, data in files if sha(data) == digest)
                self.incoming.take(digest, 0, data)
        return self.messages[-1]

    def contents(self) -> dict[str, str]:
        files = [path for path in self.into.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.into)): path.read_text() for path in files}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_other_files_in_the_folder_are_kept(node: Node) -> None:
    assert node.add(("ckpt-1", b"one"), ("checkpoint", b"1"))["type"] == "received"
    assert node.add(("sub/ckpt-2", b"two"), ("checkpoint", b"2"))["type"] == "received"
    assert node.contents() == {
        "mine": "the task's own",
        "ckpt-1": "one",
        "sub/ckpt-2": "two",
        "checkpoint": "2",
    }
    assert not [*node.transit.iterdir()]


def test_removed_files_are_deleted_once_the_new_ones_are_in_place(node: Node) -> None:
    node.add(("ckpt-1", b"one"), ("checkpoint", b"1"))
    node.add(("ckpt-2", b"two"), ("checkpoint", b"2"), removed=["ckpt-1", "never-there"])
    assert set(node.contents()) == {"mine", "ckpt-2", "checkpoint"}


def test_a_missing_folder_is_created_again(node: Node) -> None:
    (node.into / "mine").unlink()
    node.into.rmdir()
    assert node.add(("ckpt-1", b"one"))["type"] == "received"
    assert node.contents() == {"ckpt-1": "one"}


def test_paths_that_lead_out_of_the_folder_are_refused(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    (node.into / "away").symlink_to(outside)
    for files, removed in (
        ([("../up", b"x")], []),
        ([], ["../mine"]),
        ([], ["/etc/passwd"]),
        ([("away/x", b"x")], []),
        ([], ["away/precious"]),
    ):
        assert node.add(*files, removed=removed)["type"] == "file_failed"
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert set(node.contents()) >= {"mine"}
