"""The run folder and the folder of sockets are private to their user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tfcluster.errors import SetupError
from tfcluster.rundir import paths, run_writer


def writable_by_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def a_link(place: Path) -> None:
    place.symlink_to(place.parent)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [(writable_by_all, "other users can write to it"), (a_link, "not a folder but a link")],
)
def test_a_folder_that_is_not_private_is_not_used_for_sockets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Path], None],
    words: str,
) -> None:
    place = tmp_path / "tfcluster"
    prepare(place)
    monkeypatch.setattr(run_writer, "runtime_dir", lambda: place)
    with pytest.raises(SetupError, match=words) as raised:
        run_writer.make_runtime_dir()
    assert str(place) in raised.value.message
    assert "XDG_RUNTIME_DIR" in raised.value.fix


def test_the_folder_of_sockets_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tfcluster"
    monkeypatch.setattr(run_writer, "runtime_dir", lambda: place)
    run_writer.make_runtime_dir()
    assert place.stat().st_mode & 0o777 == 0o700


def test_the_id_of_another_run_is_not_reused(home_dir: Path) -> None:
    ids = iter(["demo-1", "demo-1", "demo-2"])
    first = run_writer.make_new(lambda: next(ids), home_dir)
    second = run_writer.make_new(lambda: next(ids), home_dir)
    assert (first.run_id, second.run_id) == ("demo-1", "demo-2")
    assert (home_dir / "latest").resolve() == second.root


@pytest.mark.parametrize(
    ("environ", "temp", "above"),
    [
        ({}, "/elsewhere", "/tmp"),
        ({"TMPDIR": "/scratch"}, "/scratch", "/scratch"),
        ({"TMPDIR": "/far" * 20}, "/far" * 20, "/tmp"),
        ({"XDG_RUNTIME_DIR": "/nowhere"}, "/elsewhere", "/tmp"),
    ],
)
def test_a_short_temp_folder_is_used_for_sockets(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], temp: str, above: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", temp)

    assert str(paths.runtime_dir(environ)) == f"{above}/tfcluster-{os.getuid()}"
