"""`tfcluster export` writes one file, to stdout or where -o says, and says what the file needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from tfcluster.cli.main import main

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


def export(monkeypatch: pytest.MonkeyPatch, *args: str) -> object:
    """Run `tfcluster export ARGS`; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["tfcluster", "export", *args])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_stdout_is_the_file_and_what_it_needs_goes_to_stderr(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert export(monkeypatch, "--format", "compose", "--", "--epochs", "3") == 0
    out, err = capfd.readouterr()
    service = yaml.safe_load(out)["services"]["worker-1"]
    assert service["entrypoint"][-2:] == ["--epochs", "3"]
    assert service["user"] == f"{os.getuid()}:{os.getgid()}"
    image = "the image tfcluster-join:latest, which `tfcluster build --join` makes"
    assert err == f"the file needs {image}\n"


def test_a_file_is_written_and_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "deploy").mkdir()
    assert export(monkeypatch, "--format=compose", "-o", "deploy/lab.yaml") == 0
    assert capfd.readouterr().out == "deploy/lab.yaml\n"
    text = (folder / "deploy" / "lab.yaml").read_text()
    assert "docker compose -f lab.yaml up\n" in text
    assert yaml.safe_load(text)["services"]["worker-0"]["volumes"][0]["source"] == ".."


def test_a_file_that_cannot_be_written_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert export(monkeypatch, "--format=compose", "-o", "gone/lab.yaml") == 2
    assert capfd.readouterr().err == (
        "tfcluster: gone/lab.yaml cannot be written: No such file or directory\n"
        "  → name another file: -o FILE\n"
    )


@pytest.mark.parametrize("args", [(), ("--format", "compos")])
def test_the_format_is_required_and_one_of_a_list(
    args: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert export(monkeypatch, *args) == 2
    err = capfd.readouterr().err
    assert "--format" in err
    assert "compose" in err


@pytest.mark.parametrize("line", [("--format", "jobset"), ("--format=indexed-job",)])
def test_a_format_that_was_removed_names_what_starts_the_tasks(
    line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert export(monkeypatch, *line) == 2
    assert capfd.readouterr().err.endswith(
        "'kubernetes'.\n  → `tfcluster up --backend kubernetes` starts the tasks in Kubernetes\n"
    )


def test_addresses_of_other_machines_are_refused_where_they_are_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    address = 'cluster.worker=["10.0.0.1:2222"]'
    assert export(monkeypatch, "--format=compose", "--set", address) == 2
    assert "docker runs all tasks on one machine" in capfd.readouterr().err
