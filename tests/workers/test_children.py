"""The Pythons that a task starts have hooks once they use TensorFlow; nothing else changes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfcluster_workers import children
from tfcluster_workers.hooks import import_hooks

from .conftest import Boot, clean_environment

pytestmark = pytest.mark.linux("children of a task are recognized by /proc")

SITE = Path(children.FOLDER) / "sitecustomize.py"
SHOWS = """
import json, sys
print(json.dumps([sys.version_info[:2], sys.path, sorted(sys.modules),
                  [type(f).__name__ for f in sys.meta_path]]))
sys.stderr.write("warned")
sys.exit(3)
"""


def run(python: str, *argv: str, cwd: Path | None = None, **env: str) -> tuple[int, str, str]:
    """Return the exit code, the output and the errors of a Python."""
    whole = clean_environment() | {"PYTHONDONTWRITEBYTECODE": "1"} | env
    ended = subprocess.run(
        [python, *argv], env=whole, cwd=cwd, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def run_below_task(
    python: str, *argv: str, cwd: Path | None = None, **env: str
) -> tuple[int, str, str]:
    env = {**env, "TFCLUSTER_TASK": "worker:0"}
    children.prepare(env)
    return run(python, *argv, cwd=cwd, **env)


def pythons() -> list[str]:
    """Return the Pythons of this machine, also those that tasks do not support."""
    found = sorted(map(str, Path.home().glob(".pyenv/versions/*/bin/python")))
    return found or [sys.executable]


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.split("/")[-3])
def test_any_python_starts_as_without_tfcluster(python: str) -> None:
    before, after = run(python, "-c", SHOWS), run_below_task(python, "-c", SHOWS)
    assert (after[0], after[2]) == (before[0], before[2])
    version, path, modules, finders = json.loads(before[1])
    own_path, own_finders = [], []
    if version >= [3, 9]:
        own_path, own_finders = [str(SITE.parents[2])], ["WaitingFinder"]
    assert json.loads(after[1]) == [version, path + own_path, modules, own_finders + finders]
    assert [file.name for file in SITE.parent.iterdir() if file.is_file()] == [SITE.name]


@pytest.mark.parametrize("options", [["-I"], ["-E"], ["-S"], ["-s"], ["-P"], ["-O", "-u"]], ids=str)
def test_the_options_of_a_python_stay_in_force(options: list[str]) -> None:
    code = "import sys; print(sys.flags, 'tensorflow' in sys.modules)"
    assert run_below_task(sys.executable, *options, "-c", code) == run(
        sys.executable, *options, "-c", code
    )


@pytest.mark.parametrize(
    "custom", ["import builtins; builtins.CUSTOM = 'on'", "raise ImportError('no')", "import none_"]
)
def test_the_next_sitecustomize_is_imported(tmp_path: Path, custom: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(custom)
    code = "import sys; print(sys.modules.get('sitecustomize'), globals().get('CUSTOM'))"
    found = run_below_task(sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert found == run(sys.executable, "-c", code, PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize(
    "code",
    [
        "import tensorflow",
        "import tensorflow as tf; print(tf.__file__, tf.__name__, type(tf.__loader__))",
        "import tensorflow\ndef f():\n    raise ValueError('no')\nf()",
        "import tensorflow, sys; sys.exit('no data')",
        "import tensorflow, os; os.abort()",
        "import keras",
        "import tf_keras",
    ],
)
def test_a_child_that_imports_tensorflow_is_not_disturbed(tmp_path: Path, code: str) -> None:
    (tmp_path / "tensorflow.py").write_text("print('imported')\n")
    (tmp_path / "keras.py").write_text("import none_of_them")
    (tmp_path / "tf_keras.py").write_text("raise SystemExit(7)")
    (tmp_path / "child.py").write_text(code)
    found = run_below_task(sys.executable, "child.py", cwd=tmp_path)
    assert found == run(sys.executable, "child.py", cwd=tmp_path)


def test_each_package_with_hooks_attaches_them(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("child_site", SITE)
    assert spec is not None
    packages = {name.partition(".")[0] for name in import_hooks._HOOKS}
    packages.remove("h5py")  # alone it is no training
    code = "import {name}, sys; print([type(f).__name__ for f in sys.meta_path][0])"
    for name in packages:
        (tmp_path / f"{name}.py").touch()
        ended = run_below_task(sys.executable, "-c", code.format(name=name), cwd=tmp_path)
        assert ended == (0, "PostImportFinder\n", "")


def test_the_children_of_a_task_find_the_hooks_and_the_package(tmp_path: Path, boot: Boot) -> None:
    """So do the children of a task in a run that the script of a task has started."""
    show = "import sys, tfcluster_workers; print([type(f).__name__ for f in sys.meta_path])"
    (tmp_path / "main.py").write_text(
        "import subprocess, sys\nprint([type(f).__name__ for f in sys.meta_path], flush=True)\n"
        f"subprocess.run([sys.executable, '-c', {show!r}], check=True)\n"
    )
    env: dict[str, str] = {"TFCLUSTER_TASK": "worker:0"}
    children.prepare(env)
    older = {**env, "PYTHONPATH": f"/older/tfcluster_workers/child_site::{env['PYTHONPATH']}"}
    for given in ({}, env, older):
        task, child = boot("script", str(tmp_path / "main.py"), env=given | ENV).out.splitlines()
        assert (task.count("PostImportFinder"), task.count("WaitingFinder")) == (1, 0)
        assert (child.count("PostImportFinder"), child.count("WaitingFinder")) == (0, 1)


ENV = {"TFCLUSTER_TASK": "worker:0"}


def test_an_empty_part_of_pythonpath_stays_the_working_directory() -> None:
    env = {"PYTHONPATH": ":/lib"}
    children.prepare(env)
    children.prepare(env)
    assert env["PYTHONPATH"] == f"{children.FOLDER}{os.pathsep}:/lib"


JOINS = """
import json, os, sys, tensorflow
from tfcluster_workers.hooks import cluster_check, tf_config_changes
if "sets" in sys.argv:
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}})
cluster_check.check_strategy(None)
print("joins")
"""


@pytest.mark.parametrize("change", ["", "sets", "starts without"])
def test_a_child_that_joins_another_cluster_is_refused(
    tmp_path: Path, boot: Boot, change: str
) -> None:
    tasks = ["127.0.0.1:5001", "127.0.0.1:5002"]
    config: dict[str, Any] = {"cluster": {"worker": tasks}, "task": {"type": "worker", "index": 0}}
    (tmp_path / "tensorflow.py").touch()
    (tmp_path / "child.py").write_text(JOINS)
    start = "import os, subprocess, sys\nenv = dict(os.environ)\n"
    start += "env.pop('TF_CONFIG')\n" * (change == "starts without")
    start += f"sys.exit(subprocess.call([sys.executable, 'child.py', {change!r}], env=env))"
    (tmp_path / "main.py").write_text(start)
    env = {"TF_CONFIG": json.dumps(config), "TFCLUSTER_EVENTS_SOCKET": "/nowhere", **ENV}
    ended = boot("script", str(tmp_path / "main.py"), env=env)
    if not change:
        assert (ended.code, ended.out.splitlines()[-1]) == (0, "joins"), ended.err
    else:
        assert ended.code == 1
        assert "ClusterChangedError" in ended.err
        place = "child.py:5 sets TF_CONFIG" if change == "sets" else "the script replaces TF_CONFIG"
        assert place in ended.err
