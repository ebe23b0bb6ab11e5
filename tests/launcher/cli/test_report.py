"""The commands `report` and `compare`: where their pages and their data go."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.web.synthetic import new_run, write_restarted

from tfcluster.cli.main import main

Tfcluster = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tfcluster(
    home_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Tfcluster:
    """Run a command in an empty folder, with a run that succeeded and one that failed."""
    write_restarted(home_dir, "good", started=time.time() - 60)
    bad = new_run(home_dir, "bad", started=time.time() - 60)
    bad.start()
    bad.fail()
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tfcluster", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


def test_the_page_is_written_here_and_named_like_the_run(
    tfcluster: Tfcluster, tmp_path: Path
) -> None:
    code, out, err = tfcluster("report", "good")
    (page,) = tmp_path.glob("good-*.html")
    assert (code, out, err) == (0, f"{page.name}\n", "")
    assert page.read_text().startswith("<!doctype html>")


def test_the_page_goes_where_it_is_wanted(tfcluster: Tfcluster, tmp_path: Path) -> None:
    assert tfcluster("report", "bad", "-o", "x.html")[1] == "x.html\n"
    page = (tmp_path / "x.html").read_text()
    code, out, _ = tfcluster("report", "bad", "-o", "-")
    assert code == 0
    assert out[:1000] == page[:1000]
    assert "ValueError: bad batch" in out


def test_a_page_that_cannot_be_written_is_an_error_with_a_fix(tfcluster: Tfcluster) -> None:
    code, out, err = tfcluster("report", "good", "-o", "missing/x.html")
    assert (code, out) == (2, "")
    assert err == (
        "tfcluster: missing/x.html cannot be written: No such file or directory\n"
        "  → name another file: -o FILE.html\n"
    )


def test_the_data_of_a_report_is_json(tfcluster: Tfcluster) -> None:
    assert json.loads(tfcluster("report", "good", "--json")[1])["status"] == "succeeded"


def test_compare_prints_a_table(tfcluster: Tfcluster) -> None:
    code, out, err = tfcluster("compare", "good", "bad")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["good", "bad"]
    assert lines[1].split() == ["status", "succeeded", "failed", "(1)"]


def test_compare_writes_json_and_names_the_page_that_shows_curves(tfcluster: Tfcluster) -> None:
    code, _, err = tfcluster("compare", "good", "bad", "-o", "x.html")
    assert code == 2
    assert err.endswith("  → `tfcluster ui` shows the curves of several runs in the same charts\n")
    assert len(json.loads(tfcluster("compare", "good", "bad", "--json")[1])) == 2


@pytest.mark.parametrize("runs", [("good",), ("good", "good")])
def test_compare_needs_different_runs(tfcluster: Tfcluster, runs: tuple[str, ...]) -> None:
    code, _, err = tfcluster("compare", *runs)
    assert code == 2
    assert "compare takes 2 to 6 different runs, not 1" in err


def test_an_unknown_run_is_an_error(tfcluster: Tfcluster) -> None:
    assert tfcluster("report", "nobody")[0] == 2
    assert tfcluster("compare", "good", "nobody")[0] == 2


@pytest.mark.parametrize("name", ["events.jsonl", "logs/attempt-1/worker-0.log"])
@pytest.mark.parametrize("command", ["report bad", "compare good bad", "logs bad"])
def test_a_pipe_or_a_device_in_a_run_folder_hangs_no_command(
    tfcluster: Tfcluster, home_dir: Path, command: str, name: str
) -> None:
    for run, make in (("bad", os.mkfifo), ("good", lambda path: path.symlink_to("/dev/zero"))):
        (file,) = (home_dir / "runs").glob(f"{run}-*/{name.partition('/')[0]}")
        file = file.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        make(file)

    code, _, err = tfcluster(*command.split())

    assert (code, err) == (0, "")
