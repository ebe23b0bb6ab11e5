"""The sdist and the wheel are complete: installed alone, the wheel plans without TensorFlow."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tfcluster import __version__

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel that was built from it.

    The build has no isolation, so it needs no network: hatchling is installed already.
    """
    folder = tmp_path_factory.mktemp("dist")
    check([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)], cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment that holds the wheel and its dependencies only."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    pip += ["install", "--quiet", "--no-input"]
    pinned = (ROOT / "constraints" / "newest.txt").read_text()
    pins = folder / "pins.txt"  # with hashes pip would require one for the wheel, too
    pins.write_text(re.sub(r" \\\n +--hash=\S+", "", pinned))
    pip += ["--disable-pip-version-check", "-c", str(pins)]
    check([*pip, str(wheel)], cwd=folder)
    return folder / "bin"


def check(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    return done.stdout


def tfcluster(bin_folder: Path, cwd: Path, *args: str) -> str:
    """Run the installed command to its success; return its output."""
    return check([str(bin_folder / "tfcluster"), *args], cwd=cwd, env=environment(bin_folder, cwd))


def environment(bin_folder: Path, cwd: Path) -> dict[str, str]:
    """Return variables with the environment's Python first on PATH, as if it were activated."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
    env = {key: value for key, value in os.environ.items() if key not in dropped}
    env["PATH"] = f"{bin_folder}{os.pathsep}{env['PATH']}"
    env["VIRTUAL_ENV"] = str(bin_folder.parent)
    env["TFCLUSTER_HOME"] = str(cwd / "home")
    return env


def test_the_sdist_holds_the_sources_of_the_wheel_and_all_pages(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        paths = [name.partition("/")[2] for name in archive.getnames()]
    tops = {path.partition("/")[0] for path in paths}

    assert tops == {
        *("launcher", "workers", "cluster_specs", "docker", "constraints", "docs"),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "pyproject.toml"),
        *(".gitignore", "PKG-INFO"),  # hatchling adds them
    }
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(paths)


def test_the_wheel_holds_both_packages_the_templates_and_the_schema(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {
        "tfcluster/cli/main.py",
        "tfcluster/agent/protocol.py",
        "tfcluster/py.typed",
        "tfcluster_workers/boot.py",
        "tfcluster_workers/jobs/keras_mnist.py",
        "tfcluster/templates/localhost-2w.json",
        "tfcluster/templates/hosts-2x.json",
        "tfcluster/web/templates/run.html",
        "tfcluster/web/static/run.js",
        "tfcluster/web/static/vendor/uplot/LICENSE",
        "tfcluster/docker/Dockerfile",
        "tfcluster/docker/pip-install",
        "tfcluster/docker/constraints/newest.txt",
    } <= names
    pages = {f"tfcluster/{page.relative_to(ROOT)}" for page in (ROOT / "docs").rglob("*.md")}
    assert {name for name in names if name.startswith("tfcluster/docs/")} == pages
    assert [name for name in names if name.endswith("schema.json")]
    assert [name for name in names if name.endswith("data/share/man/man1/tfcluster.1")]
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]


def test_the_wheel_runs_in_an_empty_environment_outside_the_repository(
    empty: Path, tmp_path: Path
) -> None:
    version = tfcluster(empty, tmp_path, "--version")
    tfcluster(empty, tmp_path, "init", "mine.json")
    planned = tfcluster(empty, tmp_path, "plan", "mine.json")

    assert __version__ in version
    assert (tmp_path / "mine.json").exists()
    assert "worker:0" in planned
    assert "worker:1" in planned


def test_help_shows_the_page_that_a_hint_names(empty: Path, tmp_path: Path) -> None:
    assert "### Killed by SIGKILL" in tfcluster(empty, tmp_path, "help", "failures#sigkill")


def test_the_wheel_holds_the_sources_of_the_docker_image(empty: Path, tmp_path: Path) -> None:
    code = "from tfcluster.backends.docker import worker_image; print(*worker_image.folders())"
    found = check([str(empty / "python"), "-c", code], cwd=tmp_path).split()

    assert all(Path(folder).is_relative_to(empty.parent) for folder in found)


def test_the_empty_environment_has_no_tensorflow(empty: Path, tmp_path: Path) -> None:
    found = check(
        [
            str(empty / "python"),
            "-c",
            "from importlib.util import find_spec; print(find_spec('tensorflow'))",
        ],
        cwd=tmp_path,
    )

    assert found.strip() == "None"


WITHOUT_KUBERNETES = ("up", "doctor", "ps", "status", "logs", "checkpoints", "attach", "down")


def test_a_command_names_the_extra_that_it_needs(empty: Path, tmp_path: Path) -> None:
    spec = {"cluster": {"worker": 1}, "job": {"command": ["true"]}, "runtime": {"image": "i"}}
    (tmp_path / "tfcluster.json").write_text(json.dumps(spec))
    env = environment(empty, tmp_path) | {"DOCKER_HOST": "unix:///nowhere", "KUBECONFIG": "/none"}

    def refusal(*args: str) -> str:
        done = subprocess.run(
            [str(empty / "tfcluster"), *args],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 3, (args, done.stdout, done.stderr)
        return done.stdout + done.stderr

    for command in WITHOUT_KUBERNETES:
        said = refusal(command, "--backend", "kubernetes")
        assert "the Python package urllib3 is not installed" in said
        assert "pip install 'tfcluster[kubernetes]'" in said
    assert "pip install 'tfcluster[ui]'" in refusal("ui")
    for backend in ("docker", "slurm"):
        assert "Traceback" not in refusal("up", "--backend", backend)
    for works in ("plan", "validate"):
        tfcluster(empty, tmp_path, works, "--backend", "kubernetes")
    assert "kind: Job" in tfcluster(empty, tmp_path, "export", "--format", "kubernetes")


def test_python_39_and_310_get_the_package_for_their_tasks_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert metadata["Requires-Python"] == ">=3.9"
    assert needed
    assert all("python_version >= '3.11'" in line for line in needed)
