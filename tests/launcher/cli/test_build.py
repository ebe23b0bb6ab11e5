"""`tfcluster build` passes the right arguments to docker; a fake docker records them."""

from __future__ import annotations

import itertools
import json
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfcluster.backends.docker import worker_image
from tfcluster.backends.docker.worker_image import Pin
from tfcluster.cli.tools import build
from tfcluster.errors import SetupError, UsageError

ROOT = Path(__file__).parents[3]
DOCKER = """#!{python} -IS
import json, os, sys
words = sys.argv[1:]
if words[0] == "version":
    if {version!r}:
        print({version!r})
    sys.stderr.write({complaint!r})
    sys.exit({complaint!r} != "")
if words[:2] == ["buildx", "version"]:
    sys.exit({has_buildx!r} != "yes")
context = words[-1]
files = [os.path.relpath(os.path.join(at, name), context)
         for at, _, names in os.walk(context) for name in names]
requirements = os.path.join(context, "docker/requirements.txt")
with open({recorded!r}, "w") as file:
    json.dump({{"argv": words, "files": files, "buildkit": os.environ.get("DOCKER_BUILDKIT"),
               "requirements": os.path.exists(requirements) and open(requirements).read(),
               "proxy": os.environ.get("https_proxy")}}, file)
print("podman prints its progress here")
sys.exit({code})
"""


@dataclass(frozen=True)
class Fake:
    """A fake `docker` on PATH, and `tfcluster build` that calls it."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def install(
        self, *, version: str = "20.10.24+dfsg1", complaint: str = "", has_buildx: str = "",
        code: int = 0,
    ) -> None:  # fmt: skip
        recorded = str(self.folder / "recorded.json")
        text = DOCKER.format(
            python=sys.executable, version=version, complaint=complaint, has_buildx=has_buildx,
            recorded=recorded, code=code,
        )  # fmt: skip
        path = self.folder / "bin" / "docker"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    def build(self, *args: str) -> dict[str, Any]:
        """Run `tfcluster build` and return what docker received."""
        build.main(list(args), standalone_mode=False)
        recorded: dict[str, Any] = json.loads((self.folder / "recorded.json").read_text())
        return recorded


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    fake = Fake(tmp_path, monkeypatch)
    fake.install()
    return fake


def values(argv: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(argv) if name == option]


def pinned(name: str) -> str:
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    return next(
        line.split()[0].partition("==")[2] for line in lines if line.startswith("tensorflow==")
    )


def test_the_default_is_the_newest_tested_tensorflow_for_cpus(
    docker: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded = docker.build()
    newest = pinned("newest.txt")
    names = ["tfcluster-worker:latest", f"tfcluster-worker:tf{newest}"]
    assert values(recorded["argv"], "--tag") == names
    assert values(recorded["argv"], "--target") == ["worker"]
    assert {
        "BASE_IMAGE=python:3.11-slim", "FLAVOUR=cpu", f"TENSORFLOW={newest}",
        "CONSTRAINTS=newest.txt",
    } == set(values(recorded["argv"], "--build-arg"))  # fmt: skip
    assert {"docker/Dockerfile", "docker/pip-install", "constraints/newest.txt"} <= {
        *recorded["files"]
    }
    assert recorded["buildkit"] == "1"
    assert "--network" not in recorded["argv"]
    assert "--secret" not in recorded["argv"]
    out, err = capfd.readouterr()
    assert out.split() == names
    assert "progress" in err
    assert not Path(recorded["argv"][-1]).exists(), "the build context is deleted afterwards"


def test_an_older_tensorflow_comes_with_its_own_constraints(docker: Fake) -> None:
    (docker.folder / "mine.txt").write_text("pandas\n")
    more = ("--network", "host", "-r", str(docker.folder / "mine.txt"))
    recorded = docker.build("--tensorflow", "2.15", "--gpu", "--base", "mine:1", *more)
    argv = recorded["argv"]
    assert recorded["requirements"] == "pandas\n"
    assert "docker/requirements.txt" in (ROOT / "docker/pip-install").read_text()
    version = pinned("tf215.txt")
    assert version.startswith("2.15.")
    assert values(argv, "--tag") == [f"tfcluster-worker:tf{version}-gpu"]  # :latest is not changed
    assert {f"TENSORFLOW={version}", "CONSTRAINTS=tf215.txt", "FLAVOUR=gpu"} <= {
        *values(argv, "--build-arg")
    }
    assert "BASE_IMAGE=mine:1" in values(argv, "--build-arg")
    assert f"tfcluster-worker:tf{version}-gpu" in values(argv, "--tag")
    assert values(argv, "--network") == ["host"]


@pytest.mark.parametrize(
    ("version", "pin", "expected"),
    [
        (None, Pin("2.21.0", "newest.txt"), "2.21.0"),
        ("2.21", Pin("2.21.0", "newest.txt"), "2.21.0"),
        ("2.15.1", Pin("2.15.1", "tf215.txt"), "2.15.1"),
        ("2.2", Pin("2.2", ""), "2.2.*"),
        ("2.15.0", Pin("2.15.0", ""), "2.15.0"),
    ],
)
def test_a_version_finds_the_constraints_that_pin_it(
    tmp_path: Path, version: str | None, pin: Pin, expected: str
) -> None:
    (tmp_path / "newest.txt").write_text("a==1\ntensorflow-datasets==4\ntensorflow==2.21.0\n")
    (tmp_path / "tf215.txt").write_text("tensorflow==2.15.1\n")
    (tmp_path / "others.txt").write_text("3.8.0\n")
    assert worker_image.choose(version, tmp_path) == pin
    assert pin.requirement == expected


@pytest.mark.parametrize("version", ["newest", "2", "2.15; rm -rf /", "2.15.*", ""])
def test_an_invalid_version_is_refused(docker: Fake, version: str) -> None:
    with pytest.raises(UsageError, match="is not a version"):
        docker.build("--tensorflow", version)


def test_certificates_and_pips_configuration_are_secrets(docker: Fake) -> None:
    for name in ("ca.pem", "pip.conf"):
        (docker.folder / name).write_text("x")
    docker.monkeypatch.setenv("PIP_CERT", str(docker.folder / "ca.pem"))
    docker.monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    recorded = docker.build("--pip-config", str(docker.folder / "pip.conf"))
    secrets = [f"id=ca,src={docker.folder}/ca.pem", f"id=pip,src={docker.folder}/pip.conf"]
    assert values(recorded["argv"], "--secret") == secrets
    assert not [name for name in recorded["files"] if name.endswith(("ca.pem", "pip.conf"))]


def test_proxies_are_passed_on_without_a_password_on_the_command_line(docker: Fake) -> None:
    docker.monkeypatch.setenv("https_proxy", "http://anna:pa55word@proxy:8080")
    recorded = docker.build()
    assert "https_proxy" in values(recorded["argv"], "--build-arg")
    assert "pa55word" not in " ".join(recorded["argv"])
    assert "pa55word" in recorded["proxy"]


def test_with_join_the_launcher_is_included(docker: Fake) -> None:
    recorded = docker.build("--join")
    assert values(recorded["argv"], "--target") == ["join"]
    assert values(recorded["argv"], "--tag")[0] == "tfcluster-join:latest"
    assert {
        "launcher/tfcluster/cli/starting.py",
        "workers/tfcluster_workers/boot.py",
    } <= {*recorded["files"]}
    assert not [name for name in recorded["files"] if "__pycache__" in name]


def test_a_missing_docker_client_is_reported(docker: Fake, tmp_path: Path) -> None:
    docker.monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="no docker client"):
        docker.build()


@pytest.mark.parametrize(("has_buildx", "builds"), [("yes", True), ("", False)])
def test_newer_docker_clients_need_buildx(docker: Fake, has_buildx: str, builds: bool) -> None:
    docker.install(version="28.2.2", has_buildx=has_buildx)
    if builds:
        assert docker.build()["argv"][0] == "build"
        return
    with pytest.raises(SetupError, match="buildx is missing"):
        docker.build()


def test_a_failed_build_or_an_unreachable_daemon_exits_with_3_and_prints_no_name(
    docker: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    docker.install(version="", complaint="Got permission denied while trying to connect")
    with pytest.raises(SetupError, match="Got permission denied") as refused:
        docker.build()
    assert "usermod -aG docker" in refused.value.fix
    docker.install(code=7)
    with pytest.raises(SetupError, match=r"exit code 7") as error:
        docker.build()
    assert "--base IMAGE" in error.value.fix
    assert capfd.readouterr().out == ""


def test_dockerfile_and_constraints_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in worker_image.folders():
        assert folder.is_dir()
    package = tmp_path / "tfcluster"
    (package / "docker" / "constraints").mkdir(parents=True)
    (package / "docker" / "Dockerfile").touch()
    file = package / "backends" / "docker" / "worker_image.py"
    monkeypatch.setattr(worker_image, "__file__", str(file))
    assert worker_image.folders() == (package / "docker", package / "docker" / "constraints")
    (package / "docker" / "Dockerfile").unlink()
    with pytest.raises(SetupError, match="missing from this installation"):
        worker_image.folders()


@pytest.mark.parametrize("name", ["docker/Dockerfile", "docker/pip-install", ".dockerignore"])
def test_build_files_name_no_registry_and_no_secret(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "HEALTHCHECK" not in text
