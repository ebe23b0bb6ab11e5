"""`tfcluster export` writes one file, to stdout or where -o says, and says what the file needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from tests.launcher.conftest import Tfcluster

SPEC = '{"cluster": {"worker": 2}, "job": {"script": "t.py"}}'


@pytest.fixture
def folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A current folder with a spec and its script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    (tmp_path / "t.py").touch()
    (tmp_path / "tfcluster.json").write_text(SPEC)
    return tmp_path


def test_stdout_is_the_file_and_what_it_needs_goes_to_stderr(
    folder: Path, tfcluster: Tfcluster
) -> None:
    done = tfcluster("export", "--format", "compose", "--", "--epochs", "3")
    assert done.code == 0
    service = yaml.safe_load(done.out)["services"]["worker-1"]
    assert service["entrypoint"][-2:] == ["--epochs", "3"]
    assert service["user"] == f"{os.getuid()}:{os.getgid()}"
    image = "the image tfcluster-join:latest, which `tfcluster build --join` makes"
    assert done.err == f"the file needs {image}\n"


def test_a_file_is_written_and_named(folder: Path, tfcluster: Tfcluster) -> None:
    (folder / "deploy").mkdir()
    done = tfcluster("export", "--format=compose", "-o", "deploy/lab.yaml")
    assert (done.code, done.out) == (0, "deploy/lab.yaml\n")
    text = (folder / "deploy" / "lab.yaml").read_text()
    assert "docker compose -f lab.yaml up\n" in text
    assert yaml.safe_load(text)["services"]["worker-0"]["volumes"][0]["source"] == ".."


def test_a_file_that_cannot_be_written_is_an_error(folder: Path, tfcluster: Tfcluster) -> None:
    done = tfcluster("export", "--format=compose", "-o", "gone/lab.yaml")
    assert done.code == 2
    assert done.err == (
        "tfcluster: gone/lab.yaml cannot be written: No such file or directory\n"
        "  → name another file: -o FILE\n"
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "compose"),
        (("--format", "compos"), "compose"),
        (("--format", "jobset"), "`tfcluster up --backend kubernetes` starts the tasks"),
        (("--format=indexed-job",), "`tfcluster up --backend kubernetes` starts the tasks"),
    ],
)
def test_the_format_is_required_and_one_of_a_list(
    folder: Path, tfcluster: Tfcluster, args: tuple[str, ...], said: str
) -> None:
    done = tfcluster("export", *args)
    assert done.code == 2
    assert "--format" in done.err
    assert said in done.err
