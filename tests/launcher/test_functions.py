"""Functions are packed with what they need; what cannot be sent is named before anything starts."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

import tfcluster
from tfcluster import functions
from tfcluster.agent import budgets
from tfcluster.discovery.machine_facts import gather
from tfcluster.errors import FunctionError, InterpreterError
from tfcluster.nodes import code_sync
from tfcluster.plans.job_facts import needs_tensorflow
from tfcluster.plans.placement import place_tasks
from tfcluster.plans.plan import Interpreter
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec.load import load


@pytest.fixture(autouse=True)
def in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_main(source: str, name: str = "f") -> Any:
    """Return `name` as a script that holds only `source` defines it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<script>", "exec"), names)
    return names[name]


def test_the_folder_lasts_as_long_as_the_run(tmp_path: Path) -> None:
    with functions.package(sum, ([1],)) as placed:
        folder = tmp_path / placed.folder
        assert folder.stat().st_mode & 0o777 == 0o700
        assert placed.name == "sum"
    assert list(tmp_path.iterdir()) == []
    schema = tmp_path / ".tfcluster" / "spec-v1.schema.json"
    schema.parent.mkdir()
    schema.touch()
    with functions.package(sum, ([1],)):
        pass
    assert list(schema.parent.iterdir()) == [schema], "other files there stay"


def test_files_that_the_user_lists_are_sent_and_gathered_besides_its_own(tmp_path: Path) -> None:
    """`sets` replace whole lists: the function's value would not come back."""
    sets = ['job.include=["data"]', 'checkpoints.outputs=["x*"]']
    with functions.package(sum, ([1],)) as placed:
        spec = {**placed.spec(), "cluster": {"worker": 1}}
        loaded = placed.added_to(tfcluster.load(spec, sets=sets))
        planned = tfcluster.plan(loaded)
    value = f"{placed.folder}/value.pkl"
    assert planned.plan.include == ("data", placed.folder)
    assert loaded.spec.checkpoints.outputs == ("x*", value)
    kept = planned.spec_to_keep()
    assert (kept["job"]["include"], kept["checkpoints"]["outputs"]) == (
        ["data", placed.folder],
        ["x*", value],
    )


KILLED = """
import os
from tfcluster import functions
package = functions.package(print, ("a secret",))
package.__enter__()
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_has_left_is_removed_with_the_next_package(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    [left] = tmp_path.glob(".tfcluster/function-*")
    with functions.package(print) as first, functions.package(print) as second:
        assert not left.exists()
        live = {path.name for path in left.parent.iterdir()}
        assert live == {Path(first.folder).name, Path(second.folder).name}
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    arguments = (1, {"lock": threading.Lock()})
    with pytest.raises(FunctionError, match=r"args\[1\] cannot be pickled: .*lock") as raised:
        functions.package(print, arguments).__enter__()
    assert "create it inside of the function" in raised.value.fix

    function = in_main("import threading\nLOCK = threading.Lock()\ndef f(): return LOCK\n")
    with pytest.raises(FunctionError, match=r"the function f cannot be pickled: .*lock"):
        functions.package(function).__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "kind", "fix"),
    [
        ("async def f(): pass", "an async function", "asyncio.run"),
        ("def f(): yield 1", "a generator", "list"),
        ("async def f(): yield 1", "an async generator", "asyncio.run"),
        ("class F:\n async def __call__(self): pass\nf = F()", "an async function", "asyncio.run"),
        ("import functools\nasync def g(x): pass\nf = functools.partial(g, 1)",
         "an async function", "asyncio.run"),
    ],
)  # fmt: skip
def test_a_function_that_a_call_does_not_run(source: str, kind: str, fix: str) -> None:
    """It would succeed at once, without a value."""
    with pytest.raises(FunctionError, match=f"is {kind}: calling it does not run it") as raised:
        functions.package(in_main(source)).__enter__()
    assert f"with {fix}(…)" in raised.value.fix


def test_what_is_too_large_is_named(tmp_path: Path) -> None:
    data = bytes(budgets.FUNCTION_BYTES)
    with pytest.raises(FunctionError, match=r"takes 64 MiB, most of it kwargs\['data'\]") as raised:
        functions.package(print, (b"x",), {"data": data}).__enter__()
    assert raised.value.fix == "save the data to a file and pass its path"


def test_another_minor_version_is_refused_before_the_start(tmp_path: Path) -> None:
    plan = plan_of()
    other = Interpreter("/opt/py/bin/python", "--python", "3.9.18", {})
    plan = replace(plan, nodes=(replace(plan.nodes[0], interpreter=other),))
    with functions.package(in_main("def f(): pass")) as placed:
        placed.require_same_python(plan_of())
        with pytest.raises(InterpreterError, match=r"cannot run in Python 3\.9\.18: .* \(/opt/py"):
            placed.require_same_python(plan)
    with functions.package(print) as placed:
        placed.require_same_python(plan)  # no bytecode is sent


SCRIPT = """
import sys, tensorflow.keras as K, json
from tfcluster import functions
from pathlib import Path

def helper(): return K.Model
class Net:
    def fit(self): return helper()
def train(): return Net().fit()

with functions.package(train) as placed:
    print(Path(placed.folder, "code.py").read_text())
"""


def test_the_source_of_what_travels_is_kept_for_the_checks(tmp_path: Path) -> None:
    """A plan reads it to learn what the job imports; what else the script imports is no concern."""
    stand_in = tmp_path / "lib" / "tensorflow" / "keras" / "__init__.py"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text("class Model: pass\n")
    (stand_in.parents[1] / "__init__.py").touch()
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "lib")}
    argv = [sys.executable, "train.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "import tensorflow.keras"
    assert {"def train(): return Net().fit()", "def helper(): return K.Model"} <= {*lines}
    assert "def fit(self): return helper()" in lines
    assert not any("json" in line for line in lines)


@pytest.mark.parametrize("source", ["import tensorflow as tf", "import json"])
def test_a_plan_knows_what_a_cell_imports(tmp_path: Path, source: str) -> None:
    with functions.package_cell(source, name="Cell In[1]") as placed:
        value = {**placed.spec(), "cluster": {"worker": 2}}
        spec = load(value, where="test").spec
        context = gather(
            spec, place_tasks(spec, ()), spec_dir=tmp_path, bundle="/nowhere", python=sys.executable
        )
    assert needs_tensorflow(spec, context) is ("tensorflow" in source)


@pytest.mark.linux("the stand-in for macOS starts scripts in its own way")
def test_the_folder_of_a_script_elsewhere_is_sent(tmp_path: Path) -> None:
    """The tasks of this machine import what is beside a script that is not below the workdir."""
    script = tmp_path / "scripts" / "train.py"
    for folder in (script.parent, tmp_path / "here"):
        folder.mkdir()
    script.write_text(
        "import pickle\nfrom tfcluster import functions\nfrom pathlib import Path\n"
        "with functions.package(print) as placed:\n"
        "    print(*pickle.loads(Path(placed.folder, 'call.pkl').read_bytes())['path'])\n"
    )
    shown = [
        subprocess.check_output([sys.executable, *argv], cwd=cwd, text=True).strip()
        for cwd, argv in (
            (tmp_path / "here", ["../scripts/train.py"]),
            (tmp_path, ["scripts/train.py"]),
            (script.parent, ["train.py"]),
            (script.parent, ["-m", "train"]),
        )
    ]
    assert shown == [str(script.parent), "scripts", "", ""]


def returned(tmp_path: Path, record: dict[str, Any]) -> RunPaths:
    paths = RunPaths(tmp_path / "run-1")
    file = paths.outputs / ".tfcluster" / "function-1" / "value.pkl"
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps(record))
    return paths


def test_the_value_of_the_chief_is_read_from_the_run_folder(tmp_path: Path) -> None:
    content = pickle.dumps({"loss": 0.5})
    paths = returned(tmp_path, {"python": list(sys.version_info[:2]), "content": content})
    assert functions.value(paths) == {"loss": 0.5}
    with pytest.raises(FunctionError, match="run-2 has no value of the chief"):
        functions.value(RunPaths(tmp_path / "run-2"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"error": "it is too large"}, "the chief returned no value: it is too large"),
        ({"python": (3, 9), "content": b""}, r"the value holds code of Python 3\.9"),
        ({"python": None, "content": b"cno_such_module\nX\n."}, "cannot be read: .*no_such_module"),
    ],
)
def test_a_value_that_cannot_be_read(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        functions.value(returned(tmp_path, record))


def test_another_run_does_not_copy_the_folder(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    with functions.package(print) as placed:
        assert code_sync.snapshot(tmp_path).files == ()
        sent = {file.path for file in code_sync.snapshot(tmp_path, [placed.folder]).files}
    names = {"call.pkl", "value.pkl", "cloudpickle/cloudpickle.py"}
    assert {f"{placed.folder}/{name}" for name in names} <= sent


def test_importing_the_module_does_not_import_cloudpickle() -> None:
    code = "import tfcluster.functions, json, sys; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"cloudpickle", "pydantic", "rich", "IPython"} & {*json.loads(done.stdout)}
