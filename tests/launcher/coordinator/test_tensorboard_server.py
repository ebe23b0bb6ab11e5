"""TensorBoard beside a run: a stand-in package shows how it is found, and that it ends."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.launcher.backends.test_job_watch import Fake, submitted
from tests.launcher.conftest import plan_of

from tfcluster.backends import jobs
from tfcluster.cli.results import tensorboard as command
from tfcluster.coordinator.curves import tensorboard_server
from tfcluster.errors import InterpreterError
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import write_json
from tfcluster.typed_json import to_json

SERVES = """
import os, signal, subprocess, sys, time
def run_main():
    print("TensorBoard 2.0 at http://127.0.0.1:1/", file=sys.stderr, flush=True)
"""
STOPPED = SERVES + "    os.kill(os.getpid(), signal.SIGSTOP)\n"
CHILD_STAYS = SERVES + "    subprocess.Popen(['sleep', '60'])\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package `tensorboard`, which other Pythons import."""
    folder = tmp_path / "packages" / "tensorboard"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.setattr(tensorboard_server, "_END_S", 0.5)
    return folder


@pytest.mark.parametrize("program", [STOPPED, CHILD_STAYS])
def test_a_server_that_hangs_or_leaves_a_process_does_not_hold_up_the_end(
    package: Path, tmp_path: Path, program: str
) -> None:
    (package / "__init__.py").touch()
    (package / "main.py").write_text(program)

    async def serve() -> tuple[str, float]:
        async with tensorboard_server.serving(sys.executable, tmp_path) as server:
            url = await server.url()
            began = time.monotonic()
        return url, time.monotonic() - began

    url, ended_after_s = asyncio.run(serve())
    assert url == "http://127.0.0.1:1/"
    assert ended_after_s < 30


def test_a_folder_called_tensorboard_is_not_taken_for_it(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.chdir(package.parent)
    with pytest.raises(InterpreterError):
        tensorboard_server.choose_python([])
    (package / "main.py").touch()
    assert tensorboard_server.choose_python([]) == str(bare)
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(InterpreterError):
        tensorboard_server.choose_python([])


def test_the_curves_of_a_run_in_a_cluster_are_copied_while_they_are_served(
    package: Path, home_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"__init__.py": "", "main.py": SERVES}.items():
        (package / name).write_text(text)
    fake, copied = Fake(), list[RunPaths]()
    monkeypatch.setattr(jobs, "of_backend", lambda backend: fake)
    monkeypatch.setattr(fake, "follow", lambda paths, job, cluster: copied.append(paths))
    paths = submitted(home_dir, fake)
    write_json(paths.plan, to_json(plan_of()))
    result = CliRunner().invoke(command, [paths.run_id])
    assert "http://127.0.0.1:1/" in result.output
    assert copied == [paths]
