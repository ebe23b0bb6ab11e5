"""The sdist and the wheel are complete: installed alone, the wheel plans without TensorFlow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from tools.release import archives, publishing, readme

from tfcluster import __version__

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel; building both again gave the same bytes."""
    folder = tmp_path_factory.mktemp("dist")
    archives.build(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return archives.wheel(built)


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


def test_the_archives_hold_what_they_need_and_nothing_else(built: Path) -> None:
    archives.check_contents(built)


def test_the_readme_of_the_wheel_has_links_that_work_on_an_index_page(wheel: Path) -> None:
    html = MarkdownIt().render(archives.readme(wheel))

    assert len(readme.links(html)) >= 8
    assert [*readme.broken(html)] == []


def test_a_wheel_names_its_pages_once_the_owner_is_filled_in(built: Path, tmp_path: Path) -> None:
    with tarfile.open(archives.sdist(built)) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    (tree / "PKG-INFO").unlink()  # it has the metadata of the placeholder
    for name in ("pyproject.toml", "README.md"):
        text = (tree / name).read_text()
        (tree / name).write_text(publishing.with_owner(text, "Anna"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "."]
    check(command, cwd=tree)

    about = archives.metadata(archives.wheel(tree))
    assert set(about.get_all("Project-URL", [])) == {
        "Documentation, https://anna.github.io/tfcluster/",
        "Source, https://github.com/Anna/tfcluster",
        "Issues, https://github.com/Anna/tfcluster/issues",
        "Changelog, https://github.com/Anna/tfcluster/blob/main/CHANGELOG.md",
    }
    files = f"https://github.com/Anna/tfcluster/blob/v{__version__}/docs/index.md"
    assert files in archives.readme(archives.wheel(tree))


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
    metadata = archives.metadata(wheel)
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert metadata["Requires-Python"] == ">=3.9"
    assert needed
    assert all("python_version >= '3.11'" in line for line in needed)
