"""A function or a cell of another process runs in a task, and its errors name the user's lines."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.workers.conftest import Boot, Ended, run_plain

from tfcluster import functions

WORKER = {"TFCLUSTER_TASK": "worker:0"}


@pytest.fixture(autouse=True)
def in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def defined(path: Path, source: str) -> dict[str, Any]:
    """Return the names that the script `path` with this source defines when it runs."""
    path.write_text(source)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(source, str(path), "exec"), names)
    return names


def call(boot: Boot, placed: functions.Package, **options: Any) -> Ended:
    return boot("module", "tfcluster_workers.function", placed.folder, **{"env": WORKER, **options})


def value(placed: functions.Package) -> dict[str, Any]:
    """Return the record in the chief's file."""
    found = pickle.loads(Path(placed.folder, "value.pkl").read_bytes())
    assert isinstance(found, dict)
    return found


SCRIPT = """
import json, sys
SCALE = 3

class Box:
    def __init__(self, content):
        self.content = content

def helper(x):
    return json.dumps(x * SCALE)

def train(x, *, fail=False):
    print(helper(x), sys.argv, __name__)
    if fail:
        raise ValueError("no data")
    return Box(x)
"""


def test_a_function_of_a_script_brings_what_it_uses(tmp_path: Path, boot: Boot) -> None:
    names = defined(tmp_path / "train.py", SCRIPT)
    with functions.package(names["train"], (2,)) as placed:
        ended = call(boot, placed)
        found = pickle.loads(value(placed)["content"])

    assert (ended.code, ended.out) == (0, "6 [''] __main__\n"), ended.err
    assert found.content == 2
    assert type(found) is names["Box"], "the class of this process, not a copy of it"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.linux("the stand-in for macOS is in tracebacks")
def test_an_error_names_the_line_although_the_script_is_not_there(
    tmp_path: Path, boot: Boot
) -> None:
    script = tmp_path / "train.py"
    names = defined(script, SCRIPT)
    with functions.package(names["train"], (2,), {"fail": True}) as placed:
        script.unlink()
        ended = call(boot, placed)

    assert ended.code == 1
    assert ended.err == (
        "Traceback (most recent call last):\n"
        f'  File "{script}", line 15, in train\n'
        '    raise ValueError("no data")\n'
        "ValueError: no data\n"
    )
    [error] = ended.of("task_error")
    assert (error["file"], error["line"], error["traceback"]) == (str(script), 15, ended.err)


@pytest.mark.parametrize("task", ["worker:1", "evaluator:0"])
def test_only_the_chief_writes_its_value(tmp_path: Path, boot: Boot, task: str) -> None:
    with functions.package(sum, ([1, 2],)) as placed:
        assert call(boot, placed, env={"TFCLUSTER_TASK": task}).code == 0
        assert value(placed) == {"error": "its function has not returned"}


def test_a_function_may_change_the_folder(tmp_path: Path, boot: Boot) -> None:
    names = defined(tmp_path / "f.py", "import os\ndef f():\n    os.chdir('/')\n    return 7\n")
    with functions.package(names["f"]) as placed:
        assert call(boot, placed).code == 0
        assert pickle.loads(value(placed)["content"]) == 7


def test_a_value_that_cannot_be_returned_does_not_fail_the_job(tmp_path: Path, boot: Boot) -> None:
    names = defined(tmp_path / "f.py", "import threading\ndef f(): return threading.Lock()\n")
    with functions.package(names["f"]) as placed:
        assert call(boot, placed).code == 0
        assert value(placed)["error"].startswith("_thread.lock cannot be pickled")


def test_a_cell_runs_in_any_python_with_the_variables_given(
    tmp_path: Path, python: str, boot: Boot
) -> None:
    source = "total = sum(numbers)\nprint(__name__, total)\ndef unused(): pass\n"
    with functions.package_cell(
        source, name="Cell In[3]", push={"numbers": [1, 2]}, pull=["total"]
    ) as placed:
        assert not placed.is_bytecode
        ended = call(boot, placed, python=python)
        found = value(placed)

    assert (ended.code, ended.out) == (0, "__main__ 3\n"), ended.err
    assert found["python"] is None
    assert pickle.loads(found["content"]) == {"total": 3}


def test_an_error_in_a_cell_names_the_cell(tmp_path: Path, python: str, boot: Boot) -> None:
    source = "\ndef f():\n    return 1 / 0\nf()\n"
    with functions.package_cell(source, name="Cell In[3]") as placed:
        ended = call(boot, placed, python=python)

    assert '  File "Cell In[3]", line 3, in f\n    return 1 / 0\n' in ended.err
    assert "tfcluster" not in ended.err
    [error] = ended.of("task_error")
    assert (error["file"], error["line"]) == ("Cell In[3]", 3)


def test_a_cell_that_does_not_define_what_is_pulled(tmp_path: Path, boot: Boot) -> None:
    with functions.package_cell("x = 1", name="c", pull=["loss"]) as placed:
        ended = call(boot, placed)
    assert "the cell does not define loss (--pull)" in ended.err


def test_bytecode_of_another_python_is_refused(tmp_path: Path, python: str, boot: Boot) -> None:
    names = defined(tmp_path / "f.py", "def f(): pass\n")
    with functions.package(names["f"]) as placed:
        ended = call(boot, placed, python=python)
    if python == sys.executable:
        assert ended.code == 0
    else:
        assert "bytecode loads only in the same minor version" in ended.err
        assert ended.of("task_error")[0]["exception"] == "tfcluster_workers.errors.CallError"


def test_a_module_that_the_task_does_not_have(
    tmp_path: Path, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").write_text("def f(): pass\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    import only_here  # type: ignore[import-not-found]

    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with functions.package(only_here.f) as placed:
        ended = call(boot, placed)
    assert "the function needs the module only_here" in ended.err


def test_modules_beside_the_running_script_are_found(
    tmp_path: Path, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "beside_it.py").write_text("def f(): print('found')\n")
    monkeypatch.syspath_prepend(folder)
    import beside_it  # type: ignore[import-not-found]

    with functions.package(beside_it.f) as placed:
        assert call(boot, placed).out == "found\n"


def test_without_hooks_it_runs_as_a_plain_module(tmp_path: Path, boot: Boot) -> None:
    names = defined(tmp_path / "train.py", SCRIPT)
    with functions.package(names["train"], (2,)) as placed:
        argv = ("-m", "tfcluster_workers.function", placed.folder)
        done = run_plain(sys.executable, *argv, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "6 [''] __main__\n"), done.stderr


def test_the_function_of_a_run_that_has_ended(tmp_path: Path, boot: Boot) -> None:
    with functions.package(print) as placed:
        pass
    assert "is gone: a function is kept only during its run" in call(boot, placed).err
