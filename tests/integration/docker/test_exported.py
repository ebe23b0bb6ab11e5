"""Compose starts a file of `tfcluster export --format compose` without tfcluster."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.integration.gang import MEET
from tests.integration.notebooks import as_notebook
from tests.lab.docker_images import ROOT, STUB
from tests.lab.dockerd import Docker

from .harbor import HANG_S, Harbor
from .test_compose import checked

TALK = f"""{MEET}
import pathlib, sys
print("config", json.dumps(config), flush=True)
for _ in addresses:
    listener.accept()
saved = pathlib.Path(os.environ["TFCLUSTER_CHECKPOINT_DIR"])
saved.mkdir(parents=True)
try:
    pathlib.Path("scratch").touch()
except OSError as error:
    print("code:", error.strerror)
print("arguments", sys.argv[1:], "key", os.environ["API_KEY"], flush=True)
"""
PREPARE = 'import os\nprint("prepared", os.environ.get("TF_CONFIG"), flush=True)\n'
NAME = "tfcexport"
WITH_PACKAGE = "tfcluster-tests:with-package"
"""The stub image with `tfcluster_workers`, where the Dockerfile's stage `join` has it."""
PACKAGE = re.search(r"^COPY workers/.*$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)


def write(harbor: Harbor, image: str, hooks: str, script: str = "train.py") -> Path:
    """Export a spec of two workers that connect to each other."""
    harbor.shell.script("prepare.py", PREPARE)
    harbor.shell.script("train.ipynb", as_notebook(TALK))
    job = {
        **{"script": script, "hooks": hooks, "args": ["$HOME", "it's"]},
        **{"prepare": {"script": "prepare.py"}, "secrets": ["API_KEY"]},
    }
    spec = harbor.spec(TALK, job=job, runtime={"image": image}, resources={"memory": "256m"})
    done = harbor.shell.run("export", str(spec), "--format", "compose", "-o", "lab.yaml")
    assert done.code == 0, done.err
    assert "the file needs the variable API_KEY, a secret, set where Compose runs\n" in done.err
    return harbor.shell.cwd / "lab.yaml"


@pytest.fixture
def file(harbor: Harbor) -> Path:
    """The exported file of tasks without hooks."""
    return write(harbor, STUB, "off")


@pytest.fixture
def image_with_package(docker: Docker) -> str:
    """An image as those that are based on `tfcluster-join`, without TensorFlow."""
    assert PACKAGE is not None
    file = f"FROM {STUB}\n{PACKAGE[0]}\n".encode()
    argv = ["docker", "build", "--quiet", "--tag", WITH_PACKAGE, "--file", "-", str(ROOT)]
    env = {**docker.env, "DOCKER_BUILDKIT": "1"}
    subprocess.run(argv, input=file, env=env, check=True, capture_output=True, timeout=HANG_S)
    return WITH_PACKAGE


def run(
    harbor: Harbor, compose: list[str], file: Path, *args: str, key: str | None = "sesame"
) -> subprocess.CompletedProcess[str]:
    """Run Compose on the file, with or without the secret that the file refers to."""
    env = dict(harbor.docker.env) | ({"API_KEY": key} if key is not None else {})
    argv = [*compose, "--file", str(file), "--project-name", NAME, "--ansi", "never", *args]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=HANG_S)


def test_compose_accepts_the_file(harbor: Harbor, compose: list[str], file: Path) -> None:
    done = checked(file)
    assert done.returncode == 0, done.stdout
    done = run(harbor, compose, file, "config")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert sorted(services) == ["worker-0", "worker-1"]
    assert services["worker-1"]["environment"]["API_KEY"] == "sesame"


def test_compose_asks_for_a_missing_secret(harbor: Harbor, compose: list[str], file: Path) -> None:
    assert "sesame" not in file.read_text()
    done = run(harbor, compose, file, "config", "--quiet", key=None)
    assert done.returncode != 0
    assert "API_KEY is a secret: set it where Compose runs" in done.stderr


def test_two_workers_find_each_other(harbor: Harbor, compose: list[str], file: Path) -> None:
    check_talk(harbor, compose, file)


def test_two_workers_with_hooks_that_run_a_notebook_find_each_other(
    harbor: Harbor, compose: list[str], image_with_package: str
) -> None:
    file = write(harbor, image_with_package, "auto", "train.ipynb")
    assert "tfcluster_workers/boot.py script /code/train.ipynb" in file.read_text()
    check_talk(harbor, compose, file)


def check_talk(harbor: Harbor, compose: list[str], file: Path) -> None:
    """Have Compose run the file to its end, and check what both workers printed."""
    try:
        done = run(harbor, compose, file, "up")
    finally:
        run(harbor, compose, file, "down")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"exited with code (\d+)", done.stdout) == ["0", "0"]
    for index in (0, 1):
        lines = re.findall(rf"worker-{index}\S*\s+\| (.*)", done.stdout)
        configs = [json.loads(line.removeprefix("config ")) for line in lines if "config" in line]
        assert configs == [
            {
                "cluster": {"worker": ["worker-0:2222", "worker-1:2222"]},
                "task": {"type": "worker", "index": index},
            }
        ]
        assert lines[0] == "prepared None"
        assert "arguments ['$HOME', \"it's\"] key sesame" in lines
        assert "code: Read-only file system" in lines
