"""Requested outputs in the working directory are gathered, and other new files are reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.privileges import without_override

from tfcluster.checkpoints.copying import CancelledError, LocalSource
from tfcluster.checkpoints.outputs import (
    describe_damage,
    describe_new_files,
    gather_outputs,
    list_before,
)
from tfcluster.checkpoints.recognition import Entry

LONG = "longest/" + "x" * 255


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    for name in ("train.py", "out/a.txt", "out/deep/b.txt", "model.keras", LONG):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize(
    ("globs", "files"),
    [
        (["model.keras"], ("model.keras",)),
        (["*.keras", "model.*"], ("model.keras",)),
        ([f"{LONG[:9]}*"], (LONG,)),
        (["out"], ("out/a.txt", "out/deep/b.txt")),
        (["out/*.txt", "o?t/[!b].txt"], ("out/a.txt",)),
        (["**"], (LONG, "model.keras", "out/a.txt", "out/deep/b.txt", "train.py")),
        (["**/*.txt"], ("out/a.txt", "out/deep/b.txt")),
    ],
)
def test_files_that_the_globs_match_are_copied_to_the_same_paths(
    workdir: Path, tmp_path: Path, globs: list[str], files: tuple[str, ...]
) -> None:
    result = gather_outputs(workdir, globs, tmp_path / "outputs")

    assert (result.files, result.notes) == (files, ())
    assert [(tmp_path / "outputs" / name).read_text() for name in files] == list(files)


@pytest.mark.parametrize("pattern", ["../*", "out/../../secret", "/etc/hosts", "nothing*", ""])
def test_a_glob_that_matches_nothing_inside_is_reported(
    workdir: Path, tmp_path: Path, pattern: str
) -> None:
    (tmp_path / "secret").write_text("secret")

    result = gather_outputs(workdir, [pattern], tmp_path / "outputs")

    assert result.files == ()
    assert result.notes == (f"checkpoints.outputs: nothing matches {pattern}",)
    assert not (tmp_path / "outputs").exists()


GATHER = """
import sys
from pathlib import Path
from tfcluster.checkpoints.outputs import gather_outputs
from tfcluster.checkpoints.copying import LocalSource
work, globs = Path(sys.argv[1]), sys.argv[2:]
for place in (work, LocalSource(work)):  # another machine's folder is listed whole
    found = gather_outputs(place, globs, work.parent / "outputs")
    print(found.files, found.notes)
"""


@pytest.mark.parametrize(
    ("glob", "files"),
    [("out", ("out/a.txt",)), ("**/*.txt", ("out/a.txt",))],
)
def test_an_unreadable_folder_is_reported(workdir: Path, glob: str, files: tuple[str, ...]) -> None:
    """The report is made here and on another machine, and only if a glob matches the folder."""
    (workdir / "other").mkdir()
    for name in ("other", "out/deep"):
        (workdir / name).chmod(0)
    argv = without_override([sys.executable, "-c", GATHER, str(workdir), glob])
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    for name in ("other", "out/deep"):
        (workdir / name).chmod(0o700)
    asked = ["other", "out/deep"] if glob.startswith("**") else ["out/deep"]
    notes = [
        f"checkpoints.outputs: {name} cannot be read: nothing in it was copied" for name in asked
    ]
    assert output == f"{files} {tuple(notes)}\n" * 2


def test_links_are_not_followed(workdir: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (workdir / "link").symlink_to(outside)
    (workdir / "out" / "file-link").symlink_to(outside / "secret")

    result = gather_outputs(workdir, ["out", "link"], tmp_path / "outputs")

    assert result.files == ("out/a.txt", "out/deep/b.txt")
    assert result.notes == ("checkpoints.outputs: nothing matches link",)


def test_folders_in_which_nothing_can_match_are_not_searched(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data set in the working directory may have millions of files."""
    (workdir / "data" / "train").mkdir(parents=True)
    listed, scandir = list[str](), os.scandir

    def note(folder: Any) -> Any:
        listed.append(str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", note)
    result = gather_outputs(workdir, ["*.keras", "out/**/b.txt"], tmp_path / "outputs")

    assert (result.files, result.notes) == (("model.keras", "out/deep/b.txt"), ())
    assert listed == [str(workdir), str(workdir / "out"), str(workdir / "out" / "deep")]


def test_new_files_are_reported_with_the_option_that_gathers_them(workdir: Path) -> None:
    before = list_before(workdir)
    (workdir / "final.keras").write_text("model")
    (workdir / "runs" / "1").mkdir(parents=True)
    (workdir / "runs" / "1" / "loss.csv").write_text("1")
    (workdir / "out" / "c.txt").write_text("c")

    assert describe_new_files(before) == (
        "New files in the working directory: final.keras, out/c.txt, runs/. To gather them: "
        """--set 'checkpoints.outputs=["final.keras", "out/c.txt", "runs/**"]'"""
    )
    assert gather_outputs(workdir, ["runs/**"], workdir.parent / "o").files == ("runs/1/loss.csv",)
    for number in range(9):
        (workdir / f"a-{number}").write_text("x")
    assert "a-4 and 7 more. To gather" in describe_new_files(before)


def test_nothing_is_reported_without_new_files(workdir: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (workdir / "data").symlink_to(tmp_path / "data")
    (workdir / "itself").symlink_to(workdir / "itself")
    before = list_before(workdir, ignored=[workdir / "home"])
    for path in (tmp_path / "data" / "x", workdir / "home" / "runs" / "x"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (workdir / "train.py").write_text("changed")
    for name in ("__pycache__/train.pyc", ".cache/x", "half.tmp", "env/lib/a.py"):
        (workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (workdir / name).write_text("x")
    (workdir / "env" / "pyvenv.cfg").write_text("home = /")
    (workdir / "gathered.txt").write_text("x")

    assert describe_new_files(before, gathered=["gathered.txt"]) == ""


def test_a_folder_with_too_many_files_is_not_searched(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfcluster.checkpoints.outputs._MOST_FILES", 3)
    before = list_before(workdir)
    (workdir / "new").write_text("x")

    assert describe_new_files(before) == ""


def test_an_output_that_changes_during_the_copy_is_reported(workdir: Path, tmp_path: Path) -> None:
    class Changing(LocalSource):
        def scan(self, **how: Any) -> tuple[Entry, ...]:
            listed = LocalSource(self.folder).scan(**how)
            (workdir / "model.keras").write_text("another")
            return listed

    result = gather_outputs(Changing(workdir), ["model.keras"], tmp_path / "outputs")

    assert result.files == ()
    assert result.notes == (
        "checkpoints.outputs: model.keras was not copied: model.keras: changed while it was copied",
    )
    assert not [*(tmp_path / "outputs").iterdir()]


def test_a_copied_file_that_is_not_whole_is_named(workdir: Path, tmp_path: Path) -> None:
    result = gather_outputs(workdir, ["*", "out"], tmp_path / "outputs")

    assert "model.keras" in result.files
    assert describe_damage(tmp_path / "outputs", result.files) == (
        "checkpoints.outputs: model.keras was copied, but is damaged: it is not a complete zip"
        " archive",
    )


def test_a_half_written_file_of_a_killed_task_is_no_output(workdir: Path, tmp_path: Path) -> None:
    left = "out/workertemp_worker_0_k7f3_0b2e91c4/model.keras"
    (workdir / left).parent.mkdir()
    (workdir / left).write_text("half")
    before = list_before(workdir)

    assert gather_outputs(workdir, ["**/*.keras"], tmp_path / "outputs").files == ("model.keras",)
    (workdir / "workertemp_worker_1_k7f3_5d0c77aa").mkdir()
    (workdir / "workertemp_worker_1_k7f3_5d0c77aa" / "x").touch()
    assert describe_new_files(before) == ""


def test_the_search_for_outputs_gives_signs_of_life_and_can_be_cancelled(tmp_path: Path) -> None:
    """A large working directory on a slow file server would seem to hang otherwise."""
    for number in range(5):
        (tmp_path / "work" / f"{number}").mkdir(parents=True)
        (tmp_path / "work" / f"{number}" / "curve.png").write_text("")
    asked = list[None]()

    def stopped() -> bool:
        asked.append(None)
        return len(asked) > 5

    with pytest.raises(CancelledError):
        gather_outputs(tmp_path / "work", ["**/*.png"], tmp_path / "out", stopped=stopped)
