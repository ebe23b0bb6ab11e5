"""A node receives file trees: only missing files are sent, and none outside the folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.agent.files.incoming import Incoming


def sha(data: bytes) -> str:
    return hashlib.sha512(data).hexdigest()


def file(path: str, data: bytes = b"x", **more: Any) -> dict[str, Any]:
    return {"path": path, "sha512": sha(data), "size": len(data), "mode": 0o644, **more}


class Node:
    """The receiving half of an agent, and the messages that it sent."""

    def __init__(self, folder: Path) -> None:
        self.messages: list[dict[str, Any]] = []
        self.into = folder / "work"
        self._number = 0
        self.transit = folder / "passing"
        cache = str(folder / "cache")
        self.incoming = Incoming(cache, self._send, transit=str(self.transit))

    def _send(self, report: msg.FileReport) -> None:
        self.messages.append(report.to_json())

    def receive(self, *files: dict[str, Any], keep: bool = True) -> dict[str, Any]:
        self._number += 1
        order = {"id": self._number, "into": str(self.into), "files": list(files), "keep": keep}
        self.incoming.receive(msg.Receive.read(order))
        return self.messages[-1]

    def add(self, *files: tuple[str, bytes], removed: Sequence[str] = ()) -> str:
        """Have files added and removed, with all bytes; return the type of the last message."""
        self._number += 1
        order = {"id": self._number, "into": str(self.into), "removed": [*removed], "adds": True}
        entries = [file(path, data) for path, data in files]
        self.incoming.receive(msg.Receive.read({**order, "files": entries}))
        for data in {data for _, data in files}:
            self.incoming.take(sha(data), 0, data)
        return str(self.messages[-1]["type"])

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.into)) for path in self.into.rglob("*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_tree_is_received_with_modes_times_and_links(node: Node) -> None:
    script = file("bin/run", b"#!/bin/sh", mode=0o755, mtime_ns=10**18)
    wants = node.receive(script, file("a", b""), {"path": "link", "link": "bin/run"})
    assert wants["digests"] == sorted([sha(b"#!/bin/sh"), sha(b"")])
    assert not node.into.exists()
    node.incoming.take(sha(b""), 0, b"")
    node.incoming.take(sha(b"#!/bin/sh"), 0, b"#!")
    node.incoming.take(sha(b"#!/bin/sh"), 2, b"/bin/sh")
    assert node.messages[-1] == {"type": "received", "id": 1}
    found = (node.into / "bin/run").stat()
    assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o700, 10**18)
    assert os.readlink(node.into / "link") == "bin/run"


def test_cached_files_are_not_requested(node: Node) -> None:
    node.receive(file("a", b"data"))
    node.incoming.take(sha(b"data"), 0, b"data")
    assert node.receive(file("b", b"data"), file("c", b"data"))["type"] == "received"
    assert node.names() == ["b", "c"]


def test_files_that_are_not_cached_are_moved_to_their_places(node: Node, tmp_path: Path) -> None:
    node.receive(file("a", b"data"), keep=False)
    node.incoming.take(sha(b"data"), 0, b"data")
    assert node.names() == ["a"]
    assert list(node.transit.iterdir()) == []
    assert not (tmp_path / "cache").exists()


def test_a_changed_copy_does_not_change_the_cache(node: Node) -> None:
    node.receive(file("a", b"data"))
    node.incoming.take(sha(b"data"), 0, b"data")
    (node.into / "a").write_bytes(b"changed by the job")
    node.receive(file("a", b"data"))
    assert (node.into / "a").read_bytes() == b"data"


@pytest.mark.parametrize(
    "bad",
    [
        file("../a"),
        file("/etc/a"),
        file("a/../../b"),
        file(""),
        file("a//b"),
        file("./a"),
        file("a\0b"),
        file("a") | {"sha512": "../../" + "0" * 122},
        file("a") | {"sha512": "0" * 127},
        {"path": "a", "link": "/etc"},
        {"path": "a/b", "link": "../../etc"},
        {"path": "a", "link": "b/../../etc"},
        {"path": "a", "link": "b/../b"},  # b may be a link, and then b/.. is another folder
        {"path": "a/b", "link": ""},
        {"path": "a", "link": "b\0"},
        file("a") | {"sha512": None},
    ],
)
def test_a_path_that_leads_out_of_the_folder_is_refused(node: Node, bad: dict[str, Any]) -> None:
    assert node.receive(file("good"), bad)["type"] == "file_failed"
    assert not node.into.exists()


def test_nothing_is_written_through_a_link(node: Node, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert node.receive({"path": "a", "link": "b"}, file("a/c"))["type"] == "file_failed"
    node.into.symlink_to(tmp_path / "elsewhere")
    node.receive(file("c"))
    node.incoming.take(sha(b"x"), 0, b"x")
    assert node.messages[-1]["type"] == "received"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil-of-a-test", "", "evil", "files/../../x"])
def test_the_name_in_a_frame_is_not_used_as_a_path(node: Node, tmp_path: Path, name: str) -> None:
    node.receive(file("a", b"data"))
    before = sorted(tmp_path.rglob("*"))
    node.incoming.take(name, 0, b"evil")
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/evil-of-a-test").exists()


@pytest.mark.parametrize("sent", [b"evil", b"data and more"])
def test_other_or_more_bytes_than_announced_are_refused(node: Node, sent: bytes) -> None:
    node.receive(file("a", b"data"))
    node.incoming.take(sha(b"data"), 0, sent)
    assert "SHA-512" in node.messages[-1]["error"] or sent != b"evil"
    assert node.messages[-1]["type"] == "file_failed"
    assert not node.into.exists()


def test_bytes_at_an_unexpected_offset_are_ignored(node: Node) -> None:
    node.receive(file("a", b"data"))
    node.incoming.take(sha(b"data"), 2, b"ta")
    node.incoming.take(sha(b"data"), 0, b"da")
    node.incoming.take(sha(b"data"), 2, b"ta")
    node.incoming.take(sha(b"data"), 2, b"ta")
    assert node.messages[-1]["type"] == "received"
    assert (node.into / "a").read_bytes() == b"data"


def test_a_disk_error_fails_the_order_and_not_the_agent(node: Node) -> None:
    node.into = node.into / "below" / "a file"
    node.into.parent.parent.write_text("in the way")
    node.receive(file("a", b"data"), keep=False)
    node.incoming.take(sha(b"data"), 0, b"data")
    assert node.messages[-1]["type"] == "file_failed"


def test_an_existing_folder_is_kept_if_the_order_says_so(node: Node) -> None:
    node.into.mkdir()
    (node.into / "written").touch()
    order = {"id": 9, "into": str(node.into), "files": [file("a")], "unless_there": True}
    node.incoming.receive(msg.Receive.read(order))
    assert node.messages == [{"type": "received", "id": 9}]
    assert node.names() == ["written"]


def test_an_order_repeated_after_a_lost_connection_starts_again(node: Node) -> None:
    node.receive(file("a", b"data"))
    node.incoming.take(sha(b"data"), 0, b"da")
    node.incoming.forget()
    node.incoming.take(sha(b"data"), 2, b"ta")
    assert node.receive(file("a", b"data"))["digests"] == [sha(b"data")]
    node.incoming.take(sha(b"data"), 0, b"data")
    assert (node.into / "a").read_bytes() == b"data"


def test_a_file_for_two_folders_is_sent_once(node: Node, tmp_path: Path) -> None:
    node.receive(file("a", b"data"), keep=False)
    first = node.into
    node.into = tmp_path / "other"
    node.receive(file("a", b"data"), keep=False)
    node.incoming.take(sha(b"data"), 0, b"data")
    assert (first / "a").read_bytes() == (node.into / "a").read_bytes() == b"data"
    assert [messages["type"] for messages in node.messages] == [
        "wants",
        "wants",
        "received",
        "received",
    ]
    assert node.messages[1]["digests"] == []


def test_files_are_added_and_then_others_removed_while_the_rest_stays(node: Node) -> None:
    assert node.add(("ckpt-1", b"one"), ("checkpoint", b"1")) == "received"
    (node.into / "mine").write_text("the task's own")
    added = [("sub/ckpt-2", b"two"), ("checkpoint", b"2")]
    assert node.add(*added, removed=["ckpt-1", "never-there"]) == "received"
    assert node.names() == ["checkpoint", "mine", "sub", "sub/ckpt-2"]
    assert (node.into / "checkpoint").read_text() == "2"
    assert not [*node.transit.iterdir()]


def test_added_and_removed_paths_that_lead_out_of_the_folder_are_refused(
    node: Node, tmp_path: Path
) -> None:
    node.add(("mine", b"x"))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("kept")
    (node.into / "away").symlink_to(tmp_path / "outside")
    assert node.add(("../up", b"x")) == node.add(("away/x", b"x")) == "file_failed"
    for removed in ("../mine", "/etc/passwd", "away/precious"):
        assert node.add(removed=[removed]) == "file_failed"
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["precious"]
