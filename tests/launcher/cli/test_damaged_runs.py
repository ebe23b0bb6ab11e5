"""A run with damaged files is shown as damaged, can be removed, and breaks no command."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.launcher.conftest import plan_of
from tests.privileges import without_override

from tfcluster.cli.main import cli
from tfcluster.errors import TfclusterError
from tfcluster.rundir import control, registry, run_writer
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process

DEEP = "[" * 100_000
STATE: dict[str, Any] = {
    "status": "failed",
    "exit_code": 1,
    "ended_at": 1.7e9,
    "attempt": 2,
    "agents": {"local": {"pid": 12, "guard_pid": 13}},
    "nodes": {"local": "gone"},
    "resumed_from": {"run": "demo-1", "step": 3},
    "diagnosis": {
        "root_cause": {"task": "worker:0", "reason": "exit code 1", "hint": "h", "attempt": 2},
        "collateral": ["worker:1"],
    },
    "restarts": [
        {"attempt": 2, "of": 4, "reason": "worker:0: x", "from_step": 5, "delay_s": 1.0, "time": 1}
    ],
    "chaos": [{"fault": "kill worker:1 at step 2", "task": "worker:1", "injected_at": 1.0}],
    "checkpoints": [{"path": "checkpoints/ckpt-1/ckpt-1", "step": 1, "kind": "k", "bytes": 9}],
    "trials": [{"id": "0", "status": "COMPLETED", "score": 0.5, "objective": "loss"}],
    "warnings": ["careful"],
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Yield one home for all tests of the module, which use different run ids."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFCLUSTER_HOME", str(root / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(root))
        yield root / "home"
    shutil.rmtree(root)


def make_run(home: Path, text: str | None, run_id: str = "demo-20260914-153012-k7f3") -> RunPaths:
    """Make a run folder, an hour old, with this ``state.json``."""
    shutil.rmtree(home / "runs" / run_id, ignore_errors=True)
    paths = run_writer.make(run_id, home)
    run_writer.release_reserve(paths)  # as at the end of a run
    if text is not None:
        paths.state.write_text(text)
    os.utime(paths.root, (time.time() - 3600,) * 2)
    return paths


def make_state(home: Path) -> dict[str, Any]:
    """Return a state with every field set."""
    paths = make_run(home, None)
    state = first_state(plan_of(), paths, this_process(), 1.6e9)
    state.tasks[0].error = {"exception": "E", "message": "m", "line": 3}
    state.tasks[0].metrics = {"loss": 0.5}
    return json.loads(json.dumps(state.to_json())) | copy.deepcopy(STATE)  # type: ignore[no-any-return]


def run(command: str, *args: str) -> tuple[int, str]:
    """Run a command; return its exit code and everything that it printed."""
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    done = CliRunner().invoke(found, args, standalone_mode=False)
    if isinstance(done.exception, TfclusterError):
        return done.exception.exit_code, str(done.exception)
    if done.exception is not None:
        raise done.exception
    return 0, done.output


def run_without_privileges(*words: str) -> tuple[int, str]:
    """Run a command for which the modes of files count, also if the tests run as root."""
    argv = without_override([sys.executable, "-m", "tfcluster", *words])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


def write_nothing(paths: RunPaths) -> None:
    paths.state.unlink()


def write_a_pipe(paths: RunPaths) -> None:
    paths.state.unlink()
    os.mkfifo(paths.state)


DAMAGES: dict[str, str | Callable[[RunPaths], None]] = {
    "nested deeply": '{"run":' + DEEP,
    "empty": "",
    "cut off": '{"run": "demo", "sta',
    "another type": "[1, 2]",
    "another field": '{"run": 5}',
    "a number of a thousand digits": '{"pid": ' + "9" * 5000 + "}",
    "missing": write_nothing,
    "a pipe": write_a_pipe,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_run_is_reported_and_can_be_removed(
    home: Path, damage: str | Callable[[RunPaths], None]
) -> None:
    other = "other-20260914-153012-aaaa"
    healthy = make_run(home, json.dumps(make_state(home) | {"run": other}), other)
    paths = make_run(home, damage if isinstance(damage, str) else "")
    if not isinstance(damage, str):
        damage(paths)
        os.utime(paths.root, (time.time() - 3600,) * 2)

    code, output = run("ps", "-a")
    assert code == 0
    assert f"{paths.run_id} is damaged, state.json cannot be read: " in output
    assert f"`tfcluster rm {paths.run_id}` removes its folder" in output
    assert other in output
    rows = json.loads(run("ps", "-a", "--json")[1].splitlines()[0])
    assert [row["status"] for row in rows] == ["failed", "damaged"]
    assert "loss 0.5" in run("status", other)[1]
    code, output = run("status", "k7f3")
    assert code == 3
    assert f"tfcluster rm {paths.run_id}" in output
    assert run("logs", "k7f3")[0] == 0
    assert run("rm", "k7f3") == (0, f"deleted {paths.run_id}\n")
    assert not paths.root.exists()
    assert healthy.root.exists()


def test_the_version_that_has_written_an_unreadable_state_is_named(home: Path) -> None:
    paths = RunPaths.of("demo-20260914-153012-k7f3", home)
    paths.root.mkdir(parents=True)
    paths.state.write_text('{"version": "9.0.0", "status": "hibernating"}')
    with pytest.raises(registry.DamagedRunError) as raised:
        registry.load(paths)
    assert raised.value.fix.startswith("tfcluster 9.0.0 wrote it, and this is ")


def test_prune_deletes_damaged_runs_by_age(home: Path) -> None:
    old = make_run(home, DEEP, "old-20260914-153012-bbbb")
    new = make_run(home, DEEP, "new-20260914-153012-cccc")
    os.utime(old.root, (time.time() - 40 * 86400,) * 2)
    assert "old-20260914-153012-bbbb" in run("prune", "--older-than", "30d", "-y")[1]
    assert not old.root.exists()
    assert new.root.exists()
    assert run("prune", "--keep", "0", "-y")[0] == 0
    assert not new.root.exists()


def test_a_run_of_another_user_in_the_same_home_breaks_no_command(home: Path) -> None:
    """As after one `sudo tfcluster run`."""
    mine, closed = "mine-20260914-153012-dddd", "sudo-20260914-153012-eeee"
    make_run(home, json.dumps(make_state(home) | {"run": mine, "name": "mine"}), mine)
    foreign = make_run(home, "", closed)
    foreign.root.chmod(0)

    for words in (["ps", "-a"], ["status", "mine"], ["logs", "mine"], ["prune", "-n"]):
        code, output = run_without_privileges(*words)
        assert code == 0, output
        assert "Traceback" not in output
    _, output = run_without_privileges("ps", "-a")
    assert f"{closed} is damaged, state.json cannot be read: Permission denied; another" in output
    assert f"`sudo chown -R {os.getuid()}:{os.getgid()} {foreign.root}` makes it yours" in output
    assert closed not in run_without_privileges("prune", "-n", "--keep", "0")[1]
    code, output = run_without_privileges("rm", "eeee", "dddd")
    assert code == 3
    assert f"{foreign.root} cannot be deleted: " in output
    assert f"`sudo rm -r {foreign.root}` deletes it" in output
    assert "deleted mine-20260914-153012-dddd" in output
    foreign.root.chmod(0o700)
    shutil.rmtree(foreign.root)

    (home / "runs").chmod(0)
    code, output = run_without_privileges("ps")
    (home / "runs").chmod(0o700)
    assert code == 3
    assert f"{home}/runs cannot be read: Permission denied" in output
    assert "TFCLUSTER_HOME" in output


def test_two_commands_may_delete_one_run_at_once(home: Path) -> None:
    paths = make_run(home, json.dumps(make_state(home)))
    for number in range(500):
        (paths.root / f"{number % 20}").mkdir(exist_ok=True)
        (paths.root / f"{number % 20}" / f"{number}").touch()
    begin = threading.Barrier(4)

    def delete() -> None:
        begin.wait()
        registry.delete(paths)

    with ThreadPoolExecutor(4) as threads:
        for deleting in [threads.submit(delete) for _ in range(4)]:
            deleting.result()
    assert not paths.root.exists()


def test_a_folder_without_a_state_yet_belongs_to_a_starting_run(home: Path) -> None:
    paths = make_run(home, None)
    os.utime(paths.root)
    assert "damaged" not in run("ps", "-a")[1]
    run("prune", "--keep", "0", "-y")
    assert paths.root.exists()
    shutil.rmtree(paths.root)


def test_a_damaged_run_that_is_still_live_is_not_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_run(home, DEEP)

    def read_state(path: Path, **_: object) -> object:
        assert path == paths.control_socket
        return {}

    monkeypatch.setattr(control, "read_state", read_state)
    code, output = run("rm", "k7f3")
    assert (code, f"{paths.run_id} is live" in output) == (2, True)
    run("prune", "--keep", "0", "-y")
    assert paths.root.exists()


@given(st.data(), JSON)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_commands_answer_for_any_corrupted_state(
    home: Path, data: st.DataObject, value: object
) -> None:
    """One value of an intact state is replaced or removed."""
    state = make_state(home)
    at: Any = state
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        descends = isinstance(at[key], dict | list) and at[key] and data.draw(st.booleans())
        if not descends:
            break
        at = at[key]
    if data.draw(st.booleans()):
        at[key] = value
    else:
        del at[key]
    paths = make_run(home, json.dumps(state))
    for words in (["ps", "-a"], ["status", paths.run_id], ["checkpoints", paths.run_id]):
        assert run(*words)[0] in (0, 2, 3)
    assert run("rm", paths.run_id)[0] in (0, 2)
