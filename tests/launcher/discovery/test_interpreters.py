"""The choice of the tasks' Python, and reading its version and packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tfcluster.discovery.interpreters import choose, read
from tfcluster.discovery.machine_facts import gather
from tfcluster.errors import InterpreterError
from tfcluster.plans.placement import place_tasks
from tfcluster.spec.model import ClusterSpec


def make_venv(folder: Path, *packages: str, config: str = "") -> Path:
    """Make a folder that looks like a virtual environment; its python prints `asked` and fails."""
    site = folder / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    for package in packages:
        (site / f"{package}.dist-info").mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = 3.11.7\n{config}")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho asked >&2\nexit 3\n")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize("others", [(), ("keras-3.15.1", "tensorflow-2.21.0")])
def test_a_nightly_counts_as_the_package_whose_files_it_replaces(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    nightlies = ("tf_nightly-2.23.0.dev20261026", "keras_nightly-3.16.0.dev2026102704")
    python = make_venv(tmp_path / "v", *nightlies, *others)
    assert read(str(python), "why")().packages == {
        "keras": "3.16.0.dev2026102704",
        "tensorflow": "2.23.0.dev20261026",
    }


def test_versions_of_a_virtual_environment_are_read_from_its_folders(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "v", "tensorflow_cpu-2.21.0", "tf_keras-2.21.0", "six-1.16")
    found = read(str(python), "why")()
    assert (found.path, found.version, found.why) == (str(python), "3.11.7", "why")
    assert found.packages == {"tensorflow": "2.21.0", "tf-keras": "2.21.0"}


def test_a_python_that_fails_is_named_with_its_last_line(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "v", "numpy-1.26")
    with pytest.raises(InterpreterError, match="does not work as Python: asked") as caught:
        read(str(python), "why")()
    assert caught.value.exit_code == 3
    assert "--python" in caught.value.fix


def test_a_python_outside_a_virtual_environment_is_run_for_its_versions(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('imported!')\n")
    (tmp_path / "torch").mkdir()
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    found = read(str(link), "why", environ={"PYTHONPATH": str(tmp_path)})()
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert "tensorflow" in found.packages
    assert found.packages.get("torch") != "unknown", "it is a folder"


def environments(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    work = tmp_path / "a" / "b"
    work.mkdir(parents=True)
    for name in ("venv", "conda"):
        make_venv(tmp_path / name, "tensorflow-2.15.1")
    make_venv(tmp_path / "a" / ".venv", "tensorflow-2.15.1")
    on_path = make_venv(tmp_path / "path", "tensorflow-2.15.1")
    (on_path.parent / "python3").symlink_to(on_path)
    environ = {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": str(on_path.parent),
    }
    return work, environ


@pytest.mark.parametrize(
    ("missing", "expected", "why"),
    [
        ((), "venv/bin/python", "$VIRTUAL_ENV"),
        (("VIRTUAL_ENV",), "conda/bin/python", "$CONDA_PREFIX"),
        (("VIRTUAL_ENV", "CONDA_PREFIX"), "a/.venv/bin/python", ".venv above the workdir"),
    ],
)
def test_the_first_python_in_the_documented_order_is_chosen(
    tmp_path: Path, missing: tuple[str, ...], expected: str, why: str
) -> None:
    work, environ = environments(tmp_path)
    remaining = {name: value for name, value in environ.items() if name not in missing}
    found = choose(None, "", base=tmp_path, workdir=work, environ=remaining)()
    assert (found.path, found.why) == (str(tmp_path / expected), why)


def test_without_any_environment_python3_on_path_is_chosen(tmp_path: Path) -> None:
    _, environ = environments(tmp_path)
    workdir = tmp_path / "elsewhere"
    workdir.mkdir()
    found = choose(None, "", base=tmp_path, workdir=workdir, environ={"PATH": environ["PATH"]})()
    assert (found.path, found.why) == (str(tmp_path / "path/bin/python3"), "python3 on PATH")


def test_a_shim_on_path_is_replaced_by_the_python_it_chooses(tmp_path: Path) -> None:
    shim = tmp_path / "python3"
    shim.write_text(f'#!/bin/sh\n[ "$PWD" = "{tmp_path}" ] && exec "{sys.executable}" "$@"\n')
    shim.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    found = choose(None, "", base=tmp_path, workdir=tmp_path, environ=environ)()
    assert (found.path, found.why) == (sys.executable, "python3 on PATH")
    asked = choose(str(shim), "--python", base=tmp_path, workdir=tmp_path, environ=environ)()
    assert asked.path == str(shim)


@pytest.mark.parametrize("python", ["venv", "venv/bin/python", "python3"])
def test_a_requested_python_may_be_a_file_a_folder_or_a_name(tmp_path: Path, python: str) -> None:
    _, environ = environments(tmp_path)
    found = choose(python, "--python", base=tmp_path, workdir=tmp_path, environ=environ)()
    assert Path(found.path).is_absolute()
    assert found.why == "--python"


def silent_python(folder: Path) -> str:
    """Make a `python3` without TensorFlow; return its folder, as a PATH."""
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f"""#!/bin/sh\necho "('{python}', '3.12.1', [], [])"\n""")
    python.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("script", "own_packages", "variables", "expected"),
    [
        ("import tensorflow", ["tensorflow-2.21.0"], {}, "own/bin/python"),
        ("import keras", ["tensorflow-2.21.0"], {}, "path/python3"),
        ("import numpy", ["tensorflow-2.21.0"], {}, "path/python3"),
        ("import tensorflow", ["numpy-2.4.0"], {}, "path/python3"),
        ("import tensorflow", ["tensorflow-2.21.0"], {"VIRTUAL_ENV": "venv"}, "venv/bin/python"),
        ("import jax", ["jax-0.10.0"], {}, "own/bin/python"),
    ],
)
def test_tfcluster_s_own_python_is_used_if_nothing_chose_one_and_only_it_has_the_library(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    own_packages: list[str],
    variables: dict[str, str],
    expected: str,
) -> None:
    own = make_venv(tmp_path / "own", *own_packages)
    installed = [f"{package}.dist-info" for package in own_packages]
    own.write_text(f"""#!/bin/sh\necho "('{own}', '3.11.7', [], {installed})"\n""")
    monkeypatch.setattr(sys, "executable", str(own))
    make_venv(tmp_path / "venv", "tensorflow-2.15.1")
    (tmp_path / "train.py").write_text(script)
    job = {"cluster": {"worker": 1}, "job": {"script": "train.py"}}
    environ = {"PATH": silent_python(tmp_path / "path")}
    environ |= {name: str(tmp_path / value) for name, value in variables.items()}
    spec = ClusterSpec.model_validate(job)
    context = gather(
        spec, place_tasks(spec, ()), spec_dir=tmp_path, bundle="/b/0123", environ=environ
    )
    found = context.interpreters["local"]
    assert found.path == str(tmp_path / expected)
    if expected.startswith("own"):
        library = "JAX" if "jax" in script else "TensorFlow"
        assert found.why == f"tfcluster's own: python3 on PATH has no {library}"
