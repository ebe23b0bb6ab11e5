"""`docker/compose.yaml` is valid, and its two workers train and restart together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.commandline import wait_for
from tests.lab.docker_images import JOIN, ROOT
from tests.lab.dockerd import Docker

FILE = ROOT / "docker" / "compose.yaml"
EPOCHS, EXAMPLES = 60, 192  # one is killed in the first ones
NAME = "tfctest"
HANG_S = 240.0
KILL = """
import contextlib, os, pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    with contextlib.suppress(OSError):  # its children end with the task
        if b"TFCLUSTER_TASK=worker:1" in path.read_bytes():
            os.kill(int(path.parent.name), 9)
"""


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    """Check a file against the schema of the Compose specification in `check-jsonschema`."""
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    return subprocess.run([*argv, path], capture_output=True, text=True, check=False)


def test_the_compose_file_matches_the_schema_of_compose() -> None:
    done = checked(FILE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_key_that_compose_does_not_know_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(FILE.read_text().replace("init: true", "inti: true"))
    done = checked(path)
    assert done.returncode == 1
    assert "inti" in done.stdout


def test_compose_reads_two_workers_that_differ_only_in_their_name(
    compose: list[str],
) -> None:
    argv = [*compose, "--file", str(FILE), "config"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^  (worker-\d):", done.stdout, re.MULTILINE) == ["worker-0", "worker-1"]
    addresses = json.loads(re.findall(r"cluster=({.*})", done.stdout)[0].replace('\\"', '"'))
    assert addresses == {"worker": ["worker-0:2222", "worker-1:2222"]}
    assert "ports" not in done.stdout


@dataclass(frozen=True)
class Project:
    """The Compose file with an image, a folder and a daemon of the tests' own."""

    compose: list[str]
    docker: Docker
    folder: Path

    def __call__(self, *args: str) -> str:
        argv = [*self.compose, "--file", str(FILE), "--project-name", NAME, *args]
        env = {**self.docker.env, "TFCLUSTER_IMAGE": JOIN, "PROJECT": str(self.folder)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def container(self, index: int) -> str:
        return self("ps", "--all", "--quiet", f"worker-{index}")

    def state(self, index: int) -> str:
        wanted = "{{.State.Status}} {{.State.ExitCode}} {{.RestartCount}}"
        return self.docker("inspect", "--format", wanted, self.container(index))

    def lines(self, index: int) -> list[str]:
        """Return the lines of the worker's task from all starts of its container."""
        said = self.docker.run("logs", self.container(index)).stdout
        return re.findall(rf"^worker:{index} │ (.*)$", said, re.MULTILINE)

    def end(self) -> list[str]:
        """Wait until both containers have exited, and return their states."""
        wait_for(lambda: all("exited" in self.state(index) for index in (0, 1)), timeout=HANG_S)
        return [self.state(index) for index in (0, 1)]


@pytest.fixture
def project(compose: list[str], worker_docker: Docker, tmp_path: Path) -> Iterator[Project]:
    """The Compose project with its example on less data, taken down after the test."""
    value = json.loads((ROOT / "cluster_specs" / "localhost-2w.json").read_text())
    value["job"]["args"] = ["--epochs", str(EPOCHS), f"--examples={EXAMPLES}"]
    (tmp_path / "cluster_specs").mkdir()
    (tmp_path / "cluster_specs" / "localhost-2w.json").write_text(json.dumps(value))
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # the image's user reads it
    project = Project(compose, worker_docker, tmp_path)
    yield project
    project("down", "--volumes")
    assert worker_docker("ps", "--all", "--quiet", "--filter", f"name={NAME}") == ""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestTraining:
    """Training with the image that `tfcluster build --join` makes."""

    def test_after_a_failure_compose_restarts_both_and_they_resume(self, project: Project) -> None:
        project("up", "--detach")
        wait_for(lambda: len(losses_of(project.lines(1))) >= 3, timeout=HANG_S)
        project.docker("exec", project.container(1), "python3", "-c", KILL)
        assert project.end() == ["exited 0 1", "exited 0 1"], project("logs")
        losses = [losses_of(project.lines(index)) for index in (0, 1)]
        assert [*losses[0]] == [*losses[1]] == list(range(1, EPOCHS + 1))
        for index in (0, 1):
            resumed = [line for line in project.lines(index) if "resuming after epoch" in line]
            assert len(resumed) == 1, project("logs")
        assert project.docker("logs", project.container(1)).count("epoch 1 loss") == 1


def losses_of(lines: list[str]) -> dict[int, float]:
    found = (re.match(r"epoch (\d+) loss (\S+)", line) for line in lines)
    return {int(match[1]): float(match[2]) for match in found if match}
