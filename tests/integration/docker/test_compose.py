"""`docker/compose.yaml`: what Compose reads, and what it then starts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.docker_images import JOIN, ROOT
from tests.lab.dockerd import Docker

FILE = ROOT / "docker" / "compose.yaml"
EXAMPLES = 192
PROJECT = "tfctest"


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    """Against the schema of the Compose specification, as `check-jsonschema` brings it."""
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    return subprocess.run([*argv, path], capture_output=True, text=True, check=False)


def test_it_fits_composes_own_schema() -> None:
    done = checked(FILE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_compose_does_not_know_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(FILE.read_text().replace("init: true", "inti: true"))
    done = checked(path)
    assert done.returncode == 1
    assert "inti" in done.stdout


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """The command of Compose: the plugin, else the program of its first version."""
    plugin = ["docker", "compose"]
    if shutil.which("docker") and not _code([*plugin, "version"]):
        return plugin
    if program := shutil.which("docker-compose"):
        return [program]
    pytest.skip("there is no Compose: see .ci/run")


def _code(argv: list[str]) -> int:
    return subprocess.run(argv, capture_output=True, check=False).returncode


def test_compose_reads_two_workers_that_differ_in_nothing_but_their_name(
    compose: list[str],
) -> None:
    argv = [*compose, "--file", str(FILE), "config"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^  (worker-\d):", done.stdout, re.MULTILINE) == ["worker-0", "worker-1"]
    addresses = json.loads(re.findall(r"cluster=({.*})", done.stdout)[0].replace('\\"', '"'))
    assert addresses == {"worker": ["worker-0:2222", "worker-1:2222"]}
    assert "ports" not in done.stdout


@pytest.fixture
def smaller(tmp_path: Path) -> Path:
    """A project folder with the spec of the file's own example, and fewer examples."""
    value = json.loads((ROOT / "cluster_specs" / "localhost-2w.json").read_text())
    value["job"]["args"] = ["--epochs", "1", f"--examples={EXAMPLES}"]
    (tmp_path / "cluster_specs").mkdir()
    (tmp_path / "cluster_specs" / "localhost-2w.json").write_text(json.dumps(value))
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def project(
    compose: list[str], worker_docker: Docker, smaller: Path
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Compose with the file, and the environment in which it finds daemon, image and project."""
    argv = [*compose, "--file", str(FILE), "--project-name", PROJECT]
    env = {**worker_docker.env, "TFCLUSTER_IMAGE": JOIN, "PROJECT": str(smaller)}
    yield argv, env
    subprocess.run([*argv, "down", "--volumes"], env=env, capture_output=True, check=True)
    left = worker_docker("ps", "--all", "--quiet", "--filter", f"name={PROJECT}")
    assert left == ""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_workers_find_each_other_and_train(
    project: tuple[list[str], dict[str, str]], worker_docker: Docker
) -> None:
    argv, env = project
    up = subprocess.run(
        [*argv, "up", "--no-color"], env=env, capture_output=True, text=True, timeout=240
    )
    names = worker_docker("ps", "--all", "--format", "{{.Names}} {{.Status}}").splitlines()
    assert up.returncode == 0, up.stdout[-4000:] + up.stderr[-2000:]
    assert len(names) == 2
    assert all("Exited (0)" in name for name in names), up.stdout[-4000:]
    losses = {}
    for index in (0, 1):
        said = re.findall(rf"worker:{index} │ epoch 1\S* +loss (\S+)", up.stdout)
        losses[index] = said
    assert losses[0] == losses[1] != [], up.stdout[-4000:]
