"""Private socket folders are found again although another user took their name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tfcluster.agent import relay
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.net import private_folders
from tfcluster.rundir import paths


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "tfcluster-5"


def a_folder_that_others_write_to(base: Path) -> None:
    base.mkdir()
    base.chmod(0o777)


def a_link(base: Path) -> None:
    base.symlink_to(base.parent)


def a_file(base: Path) -> None:
    base.touch()


def anothers_folder(base: Path) -> None:
    """Create a folder of another user, which only root can do."""
    base.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(base, 12345, 12345)
    else:
        base.chmod(0o777)


@pytest.mark.parametrize("take", [a_folder_that_others_write_to, a_link, a_file, anothers_folder])
def test_a_taken_name_gets_a_suffix_that_all_processes_find(
    base: Path, home: Path, take: Callable[[Path], None]
) -> None:
    assert private_folders.place_of(str(base)) == str(base)
    assert not (home / ".cache").exists(), "no suffix is stored before it is needed"
    take(base)
    with ThreadPoolExecutor(8) as pool:
        (place,) = set(pool.map(private_folders.place_of, [str(base)] * 8))
    assert place.startswith(f"{base}-")
    private_folders.make_private(place)
    (base.rmdir if base.is_dir() and not base.is_symlink() else base.unlink)()
    assert private_folders.place_of(str(base)) == place, "agents there would not be found again"
    assert stat.S_IMODE((home / ".cache/tfcluster").stat().st_mode) == 0o700


def test_a_taken_suffix_is_replaced(base: Path) -> None:
    a_file(base)
    first = Path(private_folders.place_of(str(base)))
    a_file(first)
    second = private_folders.place_of(str(base))
    assert second not in (str(base), str(first))
    assert private_folders.place_of(str(base)) == second


def test_machines_that_share_a_home_have_separate_suffixes(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_file(base)
    first = private_folders.place_of(str(base))
    names = list(os.uname())
    monkeypatch.setattr(os, "uname", lambda: os.uname_result([names[0], "other", *names[2:]]))
    base.unlink()
    assert private_folders.place_of(str(base)) == str(base)
    monkeypatch.undo()
    assert first != str(base)


def test_without_a_home_the_error_is_about_the_folder(base: Path, home: Path) -> None:
    a_file(base)
    (home / ".cache").touch()
    place = private_folders.place_of(str(base))
    assert place == str(base)
    with pytest.raises(OSError, match=r"not a folder|File exists"):
        private_folders.make_private(place)


def test_a_damaged_record_is_replaced(base: Path, home: Path) -> None:
    a_file(base)
    private_folders.place_of(str(base))
    (record,) = (home / ".cache/tfcluster").iterdir()
    record.write_bytes(b"\xff longer than a suffix")
    place = private_folders.place_of(str(base))
    assert place != str(base)
    assert private_folders.place_of(str(base)) == place


def test_coordinator_and_relay_use_the_same_folder(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "place_of", lambda path: f"{path}-0a0a0a0a")
    monkeypatch.setattr(relay, "place_of", lambda path: f"{path}-0a0a0a0a")
    expected = f"/tmp/tfcluster-{os.getuid()}-0a0a0a0a"
    assert str(paths.runtime_dir({})) == expected
    config = AgentConfig(run_id="r", node="n", token="t", socket="a", ports_dir="ports")
    config = relay.with_local_paths(config)
    assert (config.socket, config.ports_dir) == (f"{expected}/a", f"{expected}/ports")
