"""A run folder is copied while it is written, over connections that break, or says why not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster.backends import past_runs
from tfcluster.backends.kubernetes.submitted import kube_mirror
from tfcluster.backends.kubernetes.submitted.kube_mirror import FolderCopy, Mirror
from tfcluster.backends.kubernetes.submitted.kube_package import FOLDER
from tfcluster.backends.past_runs import SilentError
from tfcluster.errors import SetupError
from tfcluster.rundir import registry
from tfcluster.rundir.events import Warned
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import to_line
from tfcluster.rundir.states import Status
from tfcluster.wire.remote_source import RemoteFolder, at_once

FILE_PROCESS = [sys.executable, "-P", "-m", "tfcluster.agent.files.file_process"]


class Process:
    """A process in the pod; after `most` bytes the connection to it breaks."""

    def __init__(self, argv: list[str], most: int = 1 << 40) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._left = most

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), min(size, self._left))
        self._left -= len(data)
        return data

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    @property
    def last_words(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read().decode().strip().rpartition("\n")[2]


@dataclass
class Pod:
    """The coordinator's pod, with the run's folder, and the copy of it here."""

    far: Path
    near: RunPaths
    argv: list[str] = field(default_factory=lambda: FILE_PROCESS)
    most: int = 1 << 40
    on_open: Callable[[], object] = lambda: None
    is_released: bool = False

    @property
    def folder(self) -> str:
        return str(self.far)

    def open(self) -> Any:
        self.on_open()
        return Process(self.argv, self.most)

    def release(self) -> None:
        self.is_released = True

    def write(self, path: str, text: str, *, append: bool = False) -> None:
        target = self.far / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a" if append else "w") as file:
            file.write(text)

    def be(self, folder: str, lines: int) -> None:
        self.write(FOLDER, json.dumps({"id": folder, "lines": lines}))

    def state(self, status: str) -> None:
        self.write("state.json", json.dumps({"status": status}))

    def read(self, path: str) -> str:
        return (self.near.root / path).read_text()

    def copy_once(self, *changes: Callable[[], object]) -> None:
        """Copy all that there is now, and again after each of `changes`, over one connection."""

        async def copy() -> None:
            with self.open() as process:
                files, _ = kube_mirror.open_files(process)
                there = RemoteFolder(files, self.folder, run=at_once)
                made = FolderCopy(self.near, there)
                made.begin(await Mirror(self.near, self)._await_folder(there))
                await made.update()
                for change in changes:
                    change()
                    await made.update()

        asyncio.run(copy())


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    near = RunPaths(tmp_path / "near")
    near.root.mkdir()
    near.events.touch()
    near.state.write_text('{"status": "queued"}')
    made = Pod(tmp_path / "far", near)
    made.be("first", 0)
    made.state("running")
    return made


@pytest.fixture
def mirror(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """Return the mirror of a run whose folder has nothing but its status."""

    def load(paths: RunPaths) -> SimpleNamespace:
        return SimpleNamespace(status=Status(json.loads(paths.state.read_text())["status"]))

    monkeypatch.setattr(registry, "load_recorded", load)
    plan = SimpleNamespace(checkpoints=SimpleNamespace(to=None))
    monkeypatch.setattr(registry, "load_plan", lambda paths: plan)
    monkeypatch.setattr(past_runs, "find_leftovers_of", lambda run: None)
    return Mirror(pod.near, pod)


def test_files_grow_are_replaced_and_vanish(pod: Pod) -> None:
    pod.write("events.jsonl", "one\nhalf")
    pod.write("logs/attempt-1/worker-0.log", "a")
    pod.write("preflight.json", "old and long")
    pod.copy_once()
    assert pod.read("events.jsonl") == "one\n"
    pod.write("events.jsonl", " two\n", append=True)
    pod.write("preflight.json", "new")
    (pod.far / "logs/attempt-1/worker-0.log").unlink()
    pod.copy_once()
    assert pod.read("events.jsonl") == "one\nhalf two\n"
    assert pod.read("preflight.json") == "new"
    assert pod.read("logs/attempt-1/worker-0.log") == "a"
    assert pod.read("state.json") == '{"status": "running"}'


def test_an_ended_run_is_copied_whole_then_released_and_its_state_is_last(
    pod: Pod, mirror: Mirror
) -> None:
    pod.write("checkpoints/ckpt-1/ckpt-1.index", "index")
    pod.write("checkpoints/ckpt-1/.tfcluster.json", "{}")
    pod.write("checkpoints/.partial-2/ckpt-2.index", "half")
    for path in ("tasks/worker-0/scratch", "plan.json", ".cancelled"):
        pod.write(path, "not copied")
    pod.copy_once()
    assert not pod.near.checkpoints.exists()
    pod.state("succeeded")
    pod.on_open = lambda: pod.write("outputs/model", "x")
    assert mirror._try_to_copy(), mirror.problem
    assert pod.is_released
    assert pod.read("checkpoints/ckpt-1/ckpt-1.index") == "index"
    assert pod.read("outputs/model") == "x"
    assert json.loads(pod.read("state.json")) == {"status": "succeeded"}
    copied = {str(path.relative_to(pod.near.root)) for path in pod.near.root.rglob("*")}
    assert not {"tasks", "plan.json", ".cancelled", "checkpoints/.partial-2"} & copied
    assert mirror._try_to_copy()


def test_a_broken_connection_is_resumed_where_it_broke(pod: Pod, mirror: Mirror) -> None:
    text = "".join(f"{number:9}" for number in range(400_000))
    pod.write("outputs/model.bin", text)
    pod.state("succeeded")
    pod.most = 1 << 21
    assert not mirror._try_to_copy()
    assert mirror.problem == ""
    assert json.loads(pod.read("state.json")) == {"status": "queued"}
    (partial,) = pod.near.outputs.iterdir()
    assert 1 << 20 < partial.stat().st_size < pod.most
    assert mirror._try_to_copy(), "the rest fits into one connection"
    assert pod.read("outputs/model.bin") == text


def events(*numbers: int, word: str) -> str:
    made = (to_line(Warned(message=word), seq=number, time=1.0) for number in numbers)
    return b"".join(made).decode()


def test_a_coordinator_that_has_not_recorded_its_job_yet_repeats_no_event(pod: Pod) -> None:
    pod.near.events.write_text(events(1, 2, 3, word="a"))
    pod.be("first", 1)
    pod.write("events.jsonl", events(1, word="a"))

    def record(*numbers: int) -> None:
        pod.write("events.jsonl", events(*numbers, word="a"), append=True)

    pod.copy_once(lambda: record(2), lambda: record(3, 4))
    assert pod.read("events.jsonl") == events(1, 2, 3, 4, word="a")


def test_another_folder_of_the_run_is_appended_and_its_events_are_renumbered(pod: Pod) -> None:
    base = events(1, word="submitted")
    pod.near.events.write_text(base)
    pod.be("first", 1)
    pod.write("events.jsonl", base + events(*range(2, 10), word="first"))
    pod.write("logs/prepare/a.log", "first\n")
    pod.copy_once()
    pod.be("second", 1)
    torn = events(3, word="torn")
    pod.write("events.jsonl", base + events(2, word="second") + torn[:12])
    pod.write("logs/prepare/a.log", "second\n")
    pod.copy_once()
    pod.write("events.jsonl", torn[12:] + events(4, word="second"), append=True)
    pod.copy_once()
    found = [json.loads(line) for line in pod.read("events.jsonl").splitlines()]
    assert [each["seq"] for each in found] == [*range(1, 13)]
    assert [each["message"] for each in found[8:]] == ["first", "second", "torn", "second"]
    assert pod.read("logs/prepare/a.log") == "first\nsecond\n"


def test_the_second_failure_to_begin_is_said_in_the_transports_words(
    pod: Pod, mirror: Mirror
) -> None:
    pod.argv = [sys.executable, "-m", "no_such_module"]
    assert not mirror._try_to_copy()
    assert mirror.problem == ""  # the pod may not listen yet
    assert not mirror._try_to_copy()
    assert "No module named no_such_module" in mirror.problem


@pytest.mark.parametrize(
    "error",
    [
        SetupError("this user may not list pods"),
        SilentError("the Kubernetes API server does not answer"),
    ],
)
def test_why_no_connection_begins_is_said_at_once(
    pod: Pod, mirror: Mirror, error: Exception
) -> None:
    def fail() -> None:
        raise error

    pod.on_open = fail
    assert not mirror._try_to_copy()
    assert mirror.problem == str(error)


def test_a_coordinator_that_does_not_open_its_folder_for_long_is_said(
    pod: Pod, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_mirror, "_SLOW_S", 0.0)
    (pod.far / FOLDER).unlink()
    pod.state("succeeded")
    said = list[str]()

    async def open_folder(seconds: float) -> None:
        said.append(mirror.problem)
        pod.be("first", 0)

    monkeypatch.setattr(asyncio, "sleep", open_folder)
    assert mirror._try_to_copy()
    assert said == ["the coordinator's pod runs, but has not opened the run's folder yet"]
    assert mirror.problem == ""
