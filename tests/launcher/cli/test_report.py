"""The commands `report` and `compare`: where their pages and their data go."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.launcher.conftest import Tfcluster
from tests.web.synthetic import new_run, write_restarted


@pytest.fixture(autouse=True)
def runs(home_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a run that succeeded and one that failed, beside an empty current folder."""
    write_restarted(home_dir, "good", started=time.time() - 60)
    bad = new_run(home_dir, "bad", started=time.time() - 60)
    bad.start()
    bad.fail()
    monkeypatch.chdir(tmp_path)


def test_the_page_is_written_here_and_named_like_the_run(
    tfcluster: Tfcluster, tmp_path: Path
) -> None:
    done = tfcluster("report", "good")
    (page,) = tmp_path.glob("good-*.html")
    assert (done.code, done.out, done.err) == (0, f"{page.name}\n", "")
    assert page.read_text().startswith("<!doctype html>")


def test_the_page_goes_where_it_is_wanted(tfcluster: Tfcluster, tmp_path: Path) -> None:
    assert tfcluster("report", "bad", "-o", "x.html").out == "x.html\n"
    page = (tmp_path / "x.html").read_text()
    done = tfcluster("report", "bad", "-o", "-")
    assert done.code == 0
    assert done.out[:1000] == page[:1000]
    assert "ValueError: bad batch" in done.out


def test_a_page_that_cannot_be_written_is_an_error_with_a_fix(tfcluster: Tfcluster) -> None:
    done = tfcluster("report", "good", "-o", "missing/x.html")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "tfcluster: missing/x.html cannot be written: No such file or directory\n"
        "  → name another file: -o FILE.html\n"
    )


def test_data_are_json_and_compare_prints_a_table(tfcluster: Tfcluster) -> None:
    assert json.loads(tfcluster("report", "good", "--json").out)["status"] == "succeeded"
    assert len(json.loads(tfcluster("compare", "good", "bad", "--json").out)) == 2
    done = tfcluster("compare", "good", "bad")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["good", "bad"]
    assert lines[1].split() == ["status", "succeeded", "failed", "(1)"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compare good", "compare takes 2 to 6 different runs, not 1"),
        ("compare good good", "compare takes 2 to 6 different runs, not 1"),
        ("compare good bad -o x.html", "→ `tfcluster ui` shows the curves of several runs"),
        ("compare good nobody", "no run is named 'nobody'"),
        ("report nobody", "no run is named 'nobody'"),
    ],
)
def test_a_wrong_line_is_refused_with_a_fix(tfcluster: Tfcluster, line: str, said: str) -> None:
    done = tfcluster(*line.split())
    assert done.code == 2
    assert said in done.err


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

    done = tfcluster(*command.split())
    assert (done.code, done.err) == (0, "")
