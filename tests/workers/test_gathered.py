"""Gathered checkpoints are found by the run's id, the id's suffix, the run's name or a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster_workers import gathered
from tfcluster_workers.errors import JobError
from tfcluster_workers.jobs import ensemble

OLD, NEW = "digits-20260101-090000-aaaa", "digits-20260102-090000-bbbb"
BARE = "digits-bare-20260103-090000-cccc"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make two runs of one name with checkpoints and one without, in tfcluster's layout."""
    monkeypatch.setenv("TFCLUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "home/runs"
    for run, steps in ((OLD, (10,)), (NEW, (10, 20, 30)), (BARE, ())):
        (runs / run / "checkpoints").mkdir(parents=True)
        (runs / run / "state.json").write_text("{}")
        if steps:
            hold(runs / run / "checkpoints", *steps)
    (runs / "latest").symlink_to(BARE)
    return runs


def hold(folder: Path, *steps: int) -> None:
    lines = [f'model_checkpoint_path: "ckpt-{steps[-1]}/ckpt-{steps[-1]}"']
    for step in steps:
        (folder / f"ckpt-{step}").mkdir()
        (folder / f"ckpt-{step}" / f"ckpt-{step}.index").touch()
        lines.append(f'all_model_checkpoint_paths: "ckpt-{step}/ckpt-{step}"')
    (folder / "checkpoint").write_text("\n".join(lines))


def named(found: list[str]) -> list[tuple[str, str]]:
    return [(Path(prefix).parts[-4], Path(prefix).name) for prefix in found]


@pytest.mark.parametrize("asked", [NEW, "bbbb", "digits", "home/runs/" + NEW])
def test_a_run_is_found_by_id_suffix_name_or_folder(home: Path, asked: str) -> None:
    assert named(gathered.checkpoints(asked)) == [
        (NEW, "ckpt-10"),
        (NEW, "ckpt-20"),
        (NEW, "ckpt-30"),
    ]


def test_a_name_selects_its_newest_run_and_no_run_with_a_longer_name(home: Path) -> None:
    assert named(gathered.checkpoints("digits"))[0][0] == NEW
    with pytest.raises(gathered.NoCheckpointError, match="empty"):
        gathered.checkpoints("digits-bare")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (f"home/runs/{NEW}/checkpoints", 3),
        (f"home/runs/{NEW}/checkpoints/ckpt-10/ckpt-10", 1),
        (f"./home/runs/{OLD}", 1),
    ],
)
def test_checkpoints_are_found_by_the_path_of_a_folder_or_of_one_checkpoint(
    home: Path, asked: str, found: int
) -> None:
    assert len(gathered.checkpoints(asked)) == found


def test_a_copied_folder_is_found_by_its_bare_name(home: Path) -> None:
    (home / NEW / "checkpoints").rename("kept")
    assert [Path(prefix).name for prefix in gathered.checkpoints("kept")][-1] == "ckpt-30"


def test_a_listed_checkpoint_that_was_removed_is_skipped(home: Path) -> None:
    (home / NEW / "checkpoints/ckpt-20/ckpt-20.index").unlink()
    assert [name for _, name in named(gathered.checkpoints("bbbb"))] == ["ckpt-10", "ckpt-30"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digitz", r"no run named 'digitz' in .*/runs; did you mean digits\b.*tfcluster ps"),
        ("./digits", r"/.*/digits does not exist"),
        (BARE, r"no checkpoint of tf\.train\.Checkpoint in .*: it is empty or does not exist"),
        (".", r"no checkpoint of .*: it holds home"),
    ],
)
def test_a_missing_run_or_checkpoint_is_reported(home: Path, name: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        gathered.checkpoints(name)


def test_without_tfcluster_home_runs_are_in_the_state_folder_of_the_user() -> None:
    assert gathered.tfcluster_home({"XDG_STATE_HOME": "/s"}) == Path("/s/tfcluster")
    assert gathered.tfcluster_home({}) == Path.home() / ".local/state/tfcluster"
    assert gathered.tfcluster_home({"TFCLUSTER_HOME": "/t"}) == Path("/t")


def test_an_ensemble_takes_all_of_one_run_and_the_newest_of_several(home: Path) -> None:
    assert len(ensemble.checkpoints_of(["digits"])) == 3
    both = ensemble.checkpoints_of([OLD, NEW])
    assert named(both) == [(OLD, "ckpt-10"), (NEW, "ckpt-30")]


@pytest.mark.parametrize("runs", [[OLD], [NEW, NEW], [NEW, "latest"]])
def test_an_ensemble_of_one_checkpoint_is_refused(
    home: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        ensemble.main(["--runs", *runs])
    assert str(ended.value).startswith("ensemble: ")
    assert "\n" not in str(ended.value)
