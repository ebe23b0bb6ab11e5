"""Entries of a node's cache are checked before use and removed when old."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tfcluster.agent import bootstrap
from tfcluster.agent import catalogue as msg
from tfcluster.agent.files.cache import UNUSED_DAYS, CacheUse, prune
from tfcluster.agent.files.incoming import Incoming
from tfcluster.backends import bundle

DAY = 86400


def aged(path: Path, days: float) -> Path:
    moment = time.time() - days * DAY
    os.utime(path, (moment, moment))
    return path


def bundle_of(files: dict[str, bytes]) -> bundle.Bundle:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return bundle.Bundle(dict(sorted(files.items())), digest.hexdigest()[:16])


@pytest.fixture
def made() -> bundle.Bundle:
    return bundle_of({"agent/tfcluster/a.py": b"a", "workers/b.py": b"bb", "a.txt": b""})


def unpack(made: bundle.Bundle, cache: Path) -> Path:
    folder = cache / made.digest
    bootstrap._unpack(made.zip_bytes, str(folder))
    return folder


def test_entries_unused_for_long_are_removed_unless_an_agent_uses_them(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    ages = {"old": UNUSED_DAYS + 1, "young": UNUSED_DAYS - 1}
    ages |= {"half.partial": 2, "coming.partial": 0, "running": UNUSED_DAYS + 1, "lost": 1}
    entries = ["files/old", "files/young", "files/half.partial", "files/coming.partial"]
    entries += ["bundles/old", "bundles/young", "nodes/old", "nodes/running", "nodes/lost"]
    for entry in entries:
        path = tmp_path / entry
        path.write_bytes(b"x") if entry.startswith("files") else (path / "in").mkdir(parents=True)
        aged(path, ages[path.name])
    CacheUse(str(tmp_path / "bundles" / "b"), str(tmp_path / "nodes" / "running")).on_time(1.0)
    prune(str(tmp_path))
    kept = {"files/young", "files/coming.partial", "bundles/young", "nodes/running", "nodes/lost"}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")} == kept


def test_a_bundle_is_intact_if_its_content_matches_its_name(
    made: bundle.Bundle, tmp_path: Path
) -> None:
    folder = unpack(made, tmp_path)
    assert bootstrap.is_intact(str(folder))
    (folder / "agent/tfcluster/__pycache__").mkdir()
    (folder / "agent/tfcluster/__pycache__/a.pyc").write_bytes(b"of Python's own")
    assert bootstrap.is_intact(str(folder))
    (folder / "workers/b.py").write_bytes(b"xx")
    assert not bootstrap.is_intact(str(folder))
    assert not bootstrap.is_intact(str(tmp_path / "never-there"))


def test_the_real_bundle_has_the_digest_that_a_node_computes(tmp_path: Path) -> None:
    real = bundle.build()
    assert bootstrap.is_intact(str(bundle.unpack(real, tmp_path / "local")))
    assert bootstrap.is_intact(str(unpack(real, tmp_path / "far")))


def test_an_incomplete_bundle_is_an_error(made: bundle.Bundle, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is incomplete"):
        bootstrap._unpack(made.zip_bytes, str(tmp_path / ("0" * 16)))


@pytest.mark.parametrize("damage", ["cut", "gone", "more"])
def test_a_damaged_bundle_is_replaced(made: bundle.Bundle, tmp_path: Path, damage: str) -> None:
    folder = unpack(made, tmp_path)
    match damage:
        case "cut":
            (folder / "workers/b.py").write_bytes(b"b")
        case "gone":
            (folder / "workers/b.py").unlink()
        case "more":
            (folder / "agent/tfcluster/b.py").write_bytes(b"print('not ours')")
    assert unpack(made, tmp_path) == folder
    assert bootstrap.is_intact(str(folder))


def test_other_users_cannot_read_the_bundle(tmp_path: Path) -> None:
    """The caller's umask is restored after `bootstrap.main`."""
    relay = "def main(config): import os; print(oct(os.umask(0)), flush=True)"
    files = {"agent/tfcluster/__init__.py": b"", "agent/tfcluster/agent/__init__.py": b""}
    files["agent/tfcluster/agent/relay.py"] = relay.encode()
    sent = bundle_of(files)
    cache = tmp_path / "cache"
    order = f'{{"digest": "{sent.digest}", "cache": "{cache}", "order": {{}}}}\n'
    messages = subprocess.run(
        [sys.executable, "-I", "-S", bootstrap.__file__],
        input=order.encode() + b"%d\n" % len(sent.zip_bytes) + sent.zip_bytes,
        capture_output=True,
        check=True,
        umask=0o022,
    ).stdout
    assert messages.startswith(bootstrap.NEED)
    assert messages.endswith(bootstrap.HAVE + b"0o22\n")
    found = [cache, *(path for path in cache.rglob("*") if "__pycache__" not in path.parts)]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in found}
    assert modes == {0o700, 0o600}


def test_pruning_does_not_delay_the_end_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    aged_file = tmp_path / "files" / "old"
    aged_file.write_bytes(b"x")
    aged(aged_file, UNUSED_DAYS + 1)
    prune(str(tmp_path), timeout_s=-1)
    assert aged_file.exists()


def test_removal_does_not_follow_a_link_in_the_cache(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"x")
    (tmp_path / "bundles").mkdir()
    link = tmp_path / "bundles" / "link"
    link.symlink_to(tmp_path / "precious")
    moment = time.time() - 2 * UNUSED_DAYS * DAY
    os.utime(link, (moment, moment), follow_symlinks=False)
    prune(str(tmp_path))
    assert not link.is_symlink()
    assert (tmp_path / "precious" / "file").exists()


def test_a_running_agent_keeps_its_bundle_marked_as_in_use(tmp_path: Path) -> None:
    aged(tmp_path, 40)
    use = CacheUse(str(tmp_path))
    use.on_time(0.0)
    assert time.time() - tmp_path.stat().st_mtime < DAY
    aged(tmp_path, 40)
    use.on_time(60.0)
    assert time.time() - tmp_path.stat().st_mtime > DAY
    use.on_time(4000.0)
    assert time.time() - tmp_path.stat().st_mtime < DAY


@pytest.mark.parametrize("damage", ["changed", "cleared away", "a link"])
def test_a_changed_file_in_the_cache_is_sent_again(tmp_path: Path, damage: str) -> None:
    messages: list[dict[str, Any]] = []
    incoming = Incoming(str(tmp_path), lambda report: messages.append(report.to_json()))
    data = b"data"
    digest = hashlib.sha512(data).hexdigest()
    entry = msg.FileEntry(path="a", sha512=digest, size=len(data))

    def order(number: int, keep: bool) -> None:
        into = str(tmp_path / "nodes/run/host/work")
        incoming.receive(msg.Receive(id=number, into=into, files=[entry], keep=keep))

    order(1, keep=True)
    incoming.take(digest, 0, data)
    cached = tmp_path / "files" / digest
    aged(cached, 20)
    order(2, keep=True)
    assert messages[-1] == {"type": "received", "id": 2}
    assert time.time() - cached.stat().st_mtime < DAY, "it is marked as in use"
    match damage:
        case "changed":
            cached.write_bytes(b"evil")
        case "a link":
            cached.unlink()
            (tmp_path / "elsewhere").write_bytes(data)
            cached.symlink_to(tmp_path / "elsewhere")
        case "cleared away":  # by another host that shares this home, after the check
            exists = os.path.exists
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os.path, "exists", lambda path: exists(path) or path == str(cached))
                cached.unlink()
                order(3, keep=True)
    if damage != "cleared away":
        order(3, keep=True)
    assert messages[-1] == {"type": "wants", "id": 3, "digests": [digest]}
    incoming.take(digest, 0, data)
    assert messages[-1] == {"type": "received", "id": 3}
    assert (tmp_path / "nodes/run/host" / "work" / "a").read_bytes() == data


def test_two_hosts_that_share_a_home_write_separate_files(tmp_path: Path) -> None:
    """Processes on different hosts may have the same pid."""
    data = b"x" * 10
    digest = hashlib.sha512(data).hexdigest()
    entry = msg.FileEntry(path="a", sha512=digest, size=len(data))
    both = [(Incoming(str(tmp_path), lambda messages: None), str(tmp_path / name)) for name in "ab"]
    for incoming, into in both:
        incoming.receive(msg.Receive(id=1, into=f"{into}/work", files=[entry], keep=True))
    for at in range(10):
        for incoming, _ in both:
            incoming.take(digest, at, data[at : at + 1])
    assert [Path(into, "work/a").read_bytes() for _, into in both] == [data, data]
