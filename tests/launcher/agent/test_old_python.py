"""The agent works on the oldest supported Python, as a node may have no newer one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .conftest import NewRig, Rig, children_of, is_alive, wait_until

pytestmark = pytest.mark.linux("stray processes are found in /proc")


@cache
def find_python39() -> str | None:
    """Find a Python 3.9 in pyenv's folder, PATH or uv, the fastest check first."""
    return next(filter(_is_python39, _candidates()), None)


def _candidates() -> Iterator[str]:
    yield from map(str, Path.home().glob(".pyenv/versions/3.9*/bin/python3.9"))
    if found := shutil.which("python3.9"):
        yield found
    if uv := shutil.which("uv"):
        argv = [uv, "python", "find", "3.9"]
        yield subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def _is_python39(candidate: str) -> bool:
    """Return whether this 3.9 runs; a pyenv shim runs only where its version is selected."""
    code = "import sys; sys.exit(sys.version_info[:2] != (3, 9))"
    return (
        candidate != ""
        and subprocess.run([candidate, "-c", code], capture_output=True, check=False).returncode
        == 0
    )


@pytest.fixture(scope="module")
def python39() -> str:
    """Return a Python 3.9, or skip; with CI=true a skip is a failure (tests/conftest.py)."""
    found = find_python39()
    if found is None:
        pytest.skip("no Python 3.9 on PATH, in ~/.pyenv or from uv")
    return found


@pytest.fixture
def rig39(new_rig: NewRig, python39: str) -> Rig:
    return new_rig(python=python39)


def test_python39_runs_tasks_holds_ports_and_stops(rig39: Rig) -> None:
    assert rig39.welcome["python"].startswith("3.9.")
    rig39.peer.send("hold_ports", ports=[{"task": "worker:0", "host": "localhost", "port": 0}])
    assert rig39.peer.take("ports_held")["ports"]["worker:0"] > 0
    rig39.start("sh", "-c", "echo hello; exec sleep 60")
    wait_until(lambda: rig39.log().read_bytes() == b"hello\n")
    rig39.stop(grace_s=5)
    assert rig39.exited()["ended_by"] == "tfcluster"
    assert rig39.start("/no/such/program")["type"] == "start_failed"


def test_python39_starts_attempts_and_reports_a_stopped_task(rig39: Rig) -> None:
    for _ in range(2):
        rig39.start("setsid", "-f", "sleep", "300")
        rig39.exited()
    assert len(children_of(rig39.pid)) == 1, "the stray process of attempt 1 ended before attempt 2"
    rig39.start("sleep", "300")
    rig39.peer.send("signal", tasks=["worker:0"], signal=19)
    assert rig39.peer.take("task_frozen")["signal"] == 19
    rig39.peer.send("kill_agent")
    wait_until(lambda: not is_alive(rig39.guard_pid))


def test_python39_resumes_logs_after_a_reconnect(new_rig: NewRig, python39: str) -> None:
    rig = new_rig(python=python39, lease_s=30)
    rig.reconnect(stream_logs=True)
    rig.start("sh", "-c", "echo one; sleep 0.3; echo two")
    rig.reconnect(stream_logs=True)
    rig.exited()
    assert bytes(rig.peer.logs["worker:0/1"]) == b"one\ntwo\n"
    rig.shut_down()


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_every_module_of_the_agent_imports(python39: str, platform: str) -> None:
    """Imports also work without prctl and /proc; the platform is only faked."""
    import tfcluster.agent

    folder = Path(tfcluster.agent.__file__).parent
    modules = [f"tfcluster.agent.{path.stem}" for path in folder.glob("[a-z]*.py")]
    code = f"import sys; sys.path.append({str(folder.parents[1])!r}); sys.platform = {platform!r}; "
    argv = [python39, "-I", "-S", "-c", code + "import " + ", ".join(modules)]
    assert subprocess.run(argv, capture_output=True, text=True, check=False).stderr == ""


def test_on_python39_the_command_and_the_package_say_what_to_do(python39: str) -> None:
    env = {"PYTHONPATH": str(Path(__file__).parents[3] / "launcher"), "PATH": "/usr/bin:/bin"}
    for code in (["-m", "tfcluster", "up"], ["-c", "import tfcluster; tfcluster.run"]):
        done = subprocess.run(
            [python39, *code], env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode != 0
        assert "this is Python 3.9, and tfcluster itself needs 3.11" in done.stderr
        assert f"tfcluster up --python {python39}" in done.stderr
