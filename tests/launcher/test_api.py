"""The Python API starts, watches and ends real runs of stub scripts; no TensorFlow."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.commandline import wait_for
from tests.integration.live import is_alive
from tests.launcher.conftest import MakeRun

import tfcluster
from tfcluster import errors, run_handle
from tfcluster.coordinator import background
from tfcluster.plans.plan import TaskId
from tfcluster.rundir import registry

ROOT = Path(__file__).parents[2]
TRAINS = """
import os, zipfile
from tfcluster_workers import reporting
task = os.environ["TFCLUSTER_TASK"]
print("bar 1\\rbar 2\\rhello of", task, flush=True)
reporting.progress(7, epoch=2, metrics={"loss": 0.25 if task == "worker:0" else 0.5})
path = os.path.join(os.environ["TFCLUSTER_CHECKPOINT_DIR"], "model.keras")
with zipfile.ZipFile(path, "w") as model:
    for name in ("metadata.json", "config.json", "model.weights.h5"):
        model.writestr(name, "{}")
"""
SLEEPS = "import time; print('up', flush=True); time.sleep(300)\n"
STUBBORN = """
import signal, time
from tfcluster_workers import reporting
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reporting.saves_on_sigterm()
reporting.progress(1)
time.sleep(300)
"""
"""A job that ignores SIGTERM, for the whole grace time and not for two seconds of it."""
FAILS = "raise ValueError('not a number')\n"
WAITS = """
import os, time
print("up", flush=True)
while not os.path.exists("finish"):
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Yield the working directory of all tests, with a home for their runs."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    texts = {
        "trains": TRAINS,
        "sleeps": SLEEPS,
        "fails": FAILS,
        "waits": WAITS,
        "stubborn": STUBBORN,
    }
    for name, text in texts.items():
        (root / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("TFCLUSTER_HOME", str(root / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(root))
        patch.setenv("VIRTUAL_ENV", sys.prefix)
        yield root
    shutil.rmtree(root)


def spec(script: str, *, workers: int = 2, **more: Any) -> dict[str, Any]:
    job = {"cluster": {"worker": workers}, "job": {"script": f"{script}.py"}}
    return {"name": script, "supervision": {"max_restarts": 0}, **job, **more}


@pytest.fixture(scope="module")
def trained(folder: Path) -> tfcluster.Result:
    return tfcluster.start(spec("trains")).wait()


@pytest.fixture
def started(folder: Path) -> Iterator[tfcluster.Run]:
    """Yield a run of this process whose tasks sleep."""
    run = tfcluster.start(spec("sleeps"))
    yield run
    run.stop(now=True)


def wait_for_run() -> tfcluster.Run:
    """Wait for the only live run."""
    return wait_for(lambda: tfcluster.runs(live_only=True))[0]


def wait_until_running(*runs: tfcluster.Run) -> None:
    for run in runs:
        wait_for(lambda run=run: run.status == "running")  # type: ignore[misc]


def has_stepped(run: tfcluster.Run, *, tasks: int) -> bool:
    """Return whether `tasks` tasks have reported a step, after all that they reported before."""
    return len([task for task in run.progress().values() if task.step]) == tasks


def pids(run: tfcluster.Run) -> list[int]:
    return [task.pid for task in run.progress().values() if task.pid is not None]


# -- a run that has ended ------------------------------------------------------------------------


def test_the_result_has_status_metrics_of_the_chief_and_the_checkpoint(
    trained: tfcluster.Result,
) -> None:
    assert (trained.status, trained.exit_code) == (tfcluster.Status.SUCCEEDED, 0)
    assert (trained.loss, trained.metrics) == (0.25, {"loss": 0.25})
    assert trained.checkpoint is not None
    assert trained.checkpoint.name == "model.keras"
    assert trained.checkpoint.is_relative_to(trained.run.folder)
    assert trained.check() is trained


def test_a_run_shows_what_its_tasks_did(trained: tfcluster.Result) -> None:
    run = trained.run
    progress = run.progress()
    assert {task: (seen.step, seen.epoch) for task, seen in progress.items()} == {
        "worker:0": (7, 2),
        "worker:1": (7, 2),
    }
    assert run.diagnosis is None
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    assert list(run.events()) == list(map(json.loads, lines))
    history = run.history()
    assert {len(column) for column in history.values()} == {len(history["task"])}
    assert (history["task"][0], 0.25 in history["loss"]) == ("worker:0", True)
    timeline = history.timeline
    assert (timeline[0].type, timeline[-1].type) == ("run_started", "run_finished")
    assert [gathered.path for gathered in run.checkpoints] == [trained.checkpoint]


def test_a_run_is_started_again_from_its_checkpoint(trained: tfcluster.Result) -> None:
    again = tfcluster.start(trained.run, resume=trained.run.id, sets=["name=again"])

    result = again.wait().check()

    assert again.id.startswith("again-")
    (resumed,) = [event for event in again.events() if event["type"] == "resumed"]
    assert resumed["run"] == trained.run.id
    assert result.checkpoint is not None
    again.delete()
    assert not again.folder.exists()
    assert again._repr_html_() is None
    assert again not in tfcluster.runs()


def test_a_run_is_found_by_its_name_and_listed(trained: tfcluster.Result) -> None:
    assert tfcluster.get_run("trains") == trained.run == tfcluster.get_run(trained.run.id)
    assert trained.run in tfcluster.runs()
    assert trained.run not in tfcluster.runs(live_only=True)
    for shown in (trained.run, trained, tfcluster.runs()):
        assert trained.run.id in (shown._repr_html_() or "")
    with pytest.raises(tfcluster.UnknownRunError, match="did you mean trains"):
        tfcluster.get_run("trans")


# -- a run that fails, or never starts -----------------------------------------------------------


def test_a_failed_run_raises_its_diagnosis(folder: Path) -> None:
    with pytest.raises(tfcluster.JobFailed) as caught:
        tfcluster.run("fails.py")

    failure = caught.value
    assert failure.exit_code == 1
    assert "ValueError: not a number" in str(failure)
    assert failure.diagnosis is not None
    assert failure.diagnosis["root_cause"]["line"] == 1
    assert failure.run.status == "failed"
    assert failure.result.status == "failed"


def test_a_bad_spec_is_refused_with_all_its_problems(folder: Path) -> None:
    with pytest.raises(tfcluster.SpecError) as caught:
        tfcluster.start({"clutser": {}, "job": {"scirpt": "x.py"}})

    assert {problem.place for problem in caught.value.problems} == {"spec"}
    assert len(caught.value.problems) > 1
    with pytest.raises(tfcluster.SpecError, match="there is no script"):
        tfcluster.start(spec("not-there"))
    with pytest.raises(tfcluster.UsageError, match="belong to"):
        tfcluster.start(tfcluster.plan(spec("sleeps")), args=["--late"])


def test_a_spec_file_is_loaded_planned_and_started(folder: Path) -> None:
    path = folder / "job.json"
    path.write_text(json.dumps(spec("fails", workers=3)))

    loaded = tfcluster.load(
        path, sets=["cluster.worker=1", 'job.command=["true"]', "job.script=null"]
    )
    planned = tfcluster.plan(loaded, args=["x"])

    (task,) = planned.plan.tasks
    assert task.command.argv[-2:] == ("true", "x")
    assert tfcluster.start(planned).wait().check().run.progress().keys() == {"worker:0"}


@pytest.mark.parametrize("name", ["sets", "args", "chaos"])
def test_a_string_where_a_list_is_meant_is_refused(folder: Path, name: str) -> None:
    given: dict[str, Any] = {name: "name=x"}
    with pytest.raises(tfcluster.UsageError, match=rf"write a list: {name}=\['name=x'\]"):
        tfcluster.start(spec("sleeps"), **given)
    if name != "chaos":
        with pytest.raises(tfcluster.UsageError, match=f"{name} is a string"):
            tfcluster.run("sleeps.py", **given)
        with pytest.raises(tfcluster.UsageError, match=f"{name} is a string"):
            tfcluster.run(lambda text: text, **given)


UNTYPED: Any = tfcluster
RECURSIVE: dict[str, Any] = {}
RECURSIVE["cluster"] = RECURSIVE


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UNTYPED.load(5), "the spec is a int"),
        (lambda: UNTYPED.load({"cluster": {"worker": {1}}}), "spec: not JSON: .* set"),
        (lambda: UNTYPED.load(RECURSIVE), "spec: not JSON: Circular"),
        (lambda: UNTYPED.load("s.json", sets=[5]), "sets is a list with a int"),
        (lambda: UNTYPED.load("s.json", sets=None), "sets is a NoneType"),
        (lambda: UNTYPED.plan("s.json", python=5), "python is a int"),
        (lambda: UNTYPED.plan("s.json", args=[5]), "args is a list with a int"),
        (lambda: UNTYPED.start("s.json", resume=5), "resume is a int"),
        (lambda: UNTYPED.run(None), "the program is a NoneType"),
        (lambda: UNTYPED.run(print, kwargs=5), "kwargs is a int"),
        (lambda: UNTYPED.get_run(5), "run is a int"),
    ],
)
def test_an_argument_of_another_type_is_a_usage_error(
    folder: Path, call: Callable[[], object], message: str
) -> None:
    (folder / "s.json").write_text('{"cluster": {"worker": 1}, "job": {"script": "sleeps.py"}}')
    with pytest.raises(tfcluster.UsageError, match=message):
        call()


def test_local_tasks_run_in_the_python_that_calls(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV")

    planned = tfcluster.plan(spec("sleeps"))

    (node,) = planned.plan.nodes
    assert node.interpreter is not None
    assert node.interpreter.path == sys.executable
    assert planned.spec_to_keep()["runtime"]["python"] == sys.executable
    other = "/usr/bin/env"  # any program: a Python that the spec names is preferred
    with pytest.raises(tfcluster.InterpreterError, match=other):
        tfcluster.plan(spec("sleeps", runtime={"python": other}))
    with pytest.raises(tfcluster.InterpreterError, match=other):
        tfcluster.plan(spec("sleeps"), python=other)
    remote = tfcluster.plan(spec("sleeps"), hosts="far1,far2")
    assert "python" not in remote.spec_to_keep().get("runtime", {})


# -- live runs -----------------------------------------------------------------------------------


def test_stop_ends_the_tasks(started: tfcluster.Run) -> None:
    wait_until_running(started)
    tasks = pids(started)
    with pytest.raises(TimeoutError):
        started.wait(timeout=0.1)
    with pytest.raises(tfcluster.UsageError, match="is live"):
        started.delete()

    result = started.stop()

    assert (result.status, result.exit_code) == ("interrupted", 143)
    assert not any(map(is_alive, tasks))
    with pytest.raises(tfcluster.JobFailed, match="interrupted"):
        result.check()


def test_logs_and_events_are_followed_to_the_end_of_the_run(folder: Path) -> None:
    run = tfcluster.start(spec("waits"))

    for line in run.logs(follow=True):
        assert line.text == "up"
        (folder / "finish").touch()
    types = [event["type"] for event in run.events(follow=True)]
    (folder / "finish").unlink()

    assert types[-1] == "run_finished"
    assert run.status == "succeeded"


def test_several_runs_go_on_at_once_from_any_thread(folder: Path) -> None:
    found: list[tfcluster.Run] = []
    threads = [
        threading.Thread(target=lambda: found.append(tfcluster.start(spec("waits"))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until_running(*found)
    assert set(tfcluster.runs(live_only=True)) == set(found)

    (folder / "finish").touch()
    results = [run.wait(timeout=200) for run in found]
    (folder / "finish").unlink()

    assert [result.status for result in results] == ["succeeded"] * 2
    ports = {task.address for run in found for task in run.progress().values()}
    assert len(ports) == 4


def test_the_async_forms_leave_the_loop_free(folder: Path) -> None:
    async def watch() -> tuple[tfcluster.Result, list[str], int]:
        run, ticks = tfcluster.start(spec("sleeps")), 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await run.wait_async()
        async for line in run.logs_async(task="worker:0", follow=True):
            assert line.text == "up"
            break
        stopping = asyncio.create_task(run.stop_async())
        types = [event["type"] async for event in run.events_async(follow=True)]
        ticking.cancel()
        return await stopping, types, ticks

    result, types, ticks = asyncio.run(watch())

    assert result.status == "interrupted"
    assert types[-1] == "run_finished"
    assert ticks > 10


# -- processes -----------------------------------------------------------------------------------


SIGNALS = (
    "signal.signal(signal.SIGPIPE, signal.SIG_DFL); signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
)
THREAD = "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()"


@pytest.mark.parametrize(
    "before", ["", THREAD, SIGNALS], ids=["forked", "spawned", "with its signals"]
)
def test_a_detached_run_survives_its_starter(folder: Path, before: str) -> None:
    start = f"""
import signal, sys, threading, time, tfcluster
{before}
print(tfcluster.start({spec("waits")!r}, detach=True).id)
"""
    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, timeout=200, check=True
    )
    run = tfcluster.get_run(done.stdout.strip())
    wait_until_running(run)

    (folder / "finish").touch()
    assert run.wait(timeout=200).status == "succeeded"
    (folder / "finish").unlink()
    coordinator = run.state().pid
    wait_for(lambda: not is_alive(coordinator))


def test_a_spawned_coordinator_imports_nothing_from_the_current_folder(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong module')")
    start = f"""
import threading, time, tfcluster
{THREAD}
job = {{"cluster": {{"worker": 1}}, "job": {{"command": ["true"]}}}}
print(tfcluster.start(job, detach=True).wait().status)
"""
    command = [sys.executable, "-P", "-c", start]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)

    assert (done.stdout, done.stderr) == ("succeeded\n", "")


def test_the_error_of_a_coordinator_that_did_not_start_has_its_stderr(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_has_threads", lambda: True)
    monkeypatch.setattr(background, "_SPAWN", "raise SystemExit('no memory')")
    with pytest.raises(tfcluster.NodeLostError, match="did not start: no memory"):
        tfcluster.start(spec("sleeps"), detach=True)


def test_the_end_of_the_process_ends_its_runs_and_says_so(folder: Path) -> None:
    start = f"""
import time, tfcluster
run = tfcluster.start({spec("sleeps")!r})
while run.status != "running":
    time.sleep(0.05)
print(run.id)
"""
    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, timeout=200, check=True
    )
    run = tfcluster.get_run(done.stdout.strip())

    assert done.stderr.startswith(f"tfcluster: this process ends, which stops {run.id}; ")
    assert run.status == "interrupted"
    assert not any(map(is_alive, pids(run)))


POOL = """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
for script in ("waits.py", "trains.py"):
    pool.submit(lambda script=script: print(tfcluster.run(script).status, flush=True))
"""
ASYNC = """
def work():
    print(asyncio.run(tfcluster.start("waits.json").wait_async()).status, flush=True)
threading.Thread(target=work).start()
"""


@pytest.mark.parametrize(
    ("users", "ends"), [(POOL, ["succeeded"] * 2), (ASYNC, ["succeeded"])], ids=["pool", "asyncio"]
)
def test_the_end_of_the_process_waits_for_runs_that_its_threads_wait_for(
    folder: Path, users: str, ends: list[str]
) -> None:
    (folder / "waits.json").write_text(json.dumps(spec("waits")))
    start = f"""
import asyncio, threading, time, tfcluster
{users}
while not tfcluster.runs(live_only=True):
    time.sleep(0.05)
print("ending", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", start], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ending\n"
        wait_until_running(wait_for_run())
        (folder / "finish").touch()
        found, errors = process.communicate(timeout=200)
    (folder / "finish").unlink()

    assert (found.split(), errors) == (ends, "")


def test_ctrl_c_stops_the_run_and_a_second_one_kills_its_tasks(folder: Path) -> None:
    start = """
import tfcluster
try:
    tfcluster.run("stubborn.py")
except KeyboardInterrupt:
    print(tfcluster.get_run().status)
"""
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE) as process:
        run = wait_for_run()
        wait_for(lambda: has_stepped(run, tasks=2))
        tasks = pids(run)

        process.send_signal(signal.SIGINT)
        wait_for(lambda: run.status == "stopping")
        assert all(map(is_alive, tasks))
        process.send_signal(signal.SIGINT)

        assert process.communicate(timeout=200)[0] == b"interrupted\n"
    assert not any(map(is_alive, tasks))
    assert next(e["why"] for e in run.events() if e["type"] == "run_stopping") == "Ctrl-C"


INTERRUPTED = """
import signal, time, tfcluster
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
def sleep():
    print("up", flush=True)
    time.sleep(300)
try:
    tfcluster.run({program}, workers=1)
except Late:
    print(tfcluster.get_run().status)
"""


@pytest.mark.parametrize("program", ["'stubborn.py'", "sleep"])
def test_an_exception_of_a_signal_handler_stops_the_run(folder: Path, program: str) -> None:
    code = INTERRUPTED.format(program=program)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        run = wait_for_run()
        wait_for(lambda: list(run.logs()) if program == "sleep" else has_stepped(run, tasks=1))
        tasks = pids(run)

        process.send_signal(signal.SIGALRM)

        if program != "sleep":
            wait_for(lambda: run.status == "stopping")
            run.stop(now=True)
        assert process.communicate(timeout=200)[0] == b"interrupted\n"
    assert not any(map(is_alive, tasks))


def test_a_killed_process_that_forked_leaves_no_task_and_a_lost_run(folder: Path) -> None:
    start = f"""
import os, time, tfcluster
run = tfcluster.start({spec("sleeps")!r})
while run.status != "running":
    time.sleep(0.05)
if child := os.fork():
    print(child, flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        run = wait_for_run()
        tasks = pids(run)
        process.kill()

    try:
        wait_for(lambda: not any(map(is_alive, tasks)))
        assert is_alive(child)
        assert not registry.is_answered(run.paths)
    finally:
        os.kill(child, signal.SIGKILL)
    with pytest.raises(tfcluster.JobFailed, match="is lost") as caught:
        run.wait().check()
    assert caught.value.exit_code == 3
    assert run.stop().status == "lost"
    assert run.state().ended_at is not None, "it was cleaned up"


def test_a_run_of_this_process_that_could_not_record_its_end_is_lost(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_run(status=tfcluster.Status.RUNNING)
    coordinator = threading.Thread(target=lambda: None)
    coordinator.start()
    coordinator.join()
    monkeypatch.setitem(run_handle._threads, paths, coordinator)

    assert tfcluster.Run(paths).wait(timeout=60).status == "lost"


# -- run folders ---------------------------------------------------------------------------------


def write_log(run: tfcluster.Run, task: str, attempt: int, text: bytes) -> None:
    log = run.paths.task_log(TaskId.parse(task), attempt)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(text)


def test_the_lines_of_a_task_are_in_order_over_its_attempts(make_run: MakeRun) -> None:
    run = tfcluster.Run(make_run(status=tfcluster.Status.RUNNING))
    write_log(run, "worker:0", 1, b"one\r100%\r\nkilled in mid-")
    lines = run.logs(follow=True)
    assert next(lines) == tfcluster.LogLine("worker:0", 1, "100%")

    write_log(run, "worker:0", 2, b"two \xff\n")

    assert next(lines) == tfcluster.LogLine("worker:0", 1, "killed in mid-")
    assert next(lines) == tfcluster.LogLine("worker:0", 2, "two \ufffd")


def test_many_lines_leave_an_asyncio_loop_time(make_run: MakeRun) -> None:
    run, ticks = tfcluster.Run(make_run()), 0
    write_log(run, "worker:0", 1, b"line\n" * 200_000)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def read() -> int:
        ticking = asyncio.create_task(tick())
        count = len([line async for line in run.logs_async()])
        ticking.cancel()
        return count

    assert asyncio.run(read()) == 200_000
    assert ticks > 1


def test_a_deleted_run_is_unknown_and_a_damaged_one_has_an_error_of_its_own(
    make_run: MakeRun,
) -> None:
    damaged, run = tfcluster.Run(make_run()), tfcluster.Run(make_run())
    damaged.paths.state.write_text("{")
    with pytest.raises(tfcluster.DamagedRunError, match="is damaged"):
        damaged.state()
    with pytest.raises(tfcluster.UsageError, match="wroker"):
        run.logs(task="wroker:0")
    with pytest.raises(tfcluster.UsageError, match="worker:9"):
        run.logs_async(task="worker:9")
    run.delete()
    for use in (run.delete, run.state, run.stop, lambda: run.status):
        with pytest.raises(tfcluster.UnknownRunError, match="was deleted"):
            use()


def test_a_stop_that_takes_longer_says_that_the_run_is_stopping(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfcluster.rundir.control.stop", lambda *_, **__: None)
    run = tfcluster.Run(make_run(status=tfcluster.Status.RUNNING))
    with pytest.raises(TimeoutError, match="it is stopping"):
        run.stop(timeout=0.01)
    with pytest.raises(TimeoutError, match="it continues"):
        run.wait(timeout=0.01)


# -- the package ---------------------------------------------------------------------------------


def test_every_name_of_the_package_exists_and_another_is_an_attribute_error() -> None:
    assert [name for name in tfcluster.__all__ if not hasattr(tfcluster, name)] == []
    failures = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert {name for name in failures if name.endswith("Error")} <= set(tfcluster.__all__)
    assert set(tfcluster.__all__) <= set(dir(tfcluster))
    with pytest.raises(AttributeError, match="'strat'"):
        _ = tfcluster.strat  # type: ignore[attr-defined]


USES = """
import asyncio
from pathlib import Path

import tfcluster

planned = tfcluster.plan(Path("job.json"), args=["--epochs", "1"])
reveal_type(tfcluster.start(planned, detach=True))
result = tfcluster.run("train.py", workers=4)
reveal_type(result.loss)
reveal_type(result.checkpoint)
for line in result.run.logs(follow=True):
    reveal_type(line.text)


async def watch() -> None:
    async for event in tfcluster.get_run().events_async():
        print(event["type"])
    reveal_type(await tfcluster.get_run().wait_async())


try:
    asyncio.run(watch())
except tfcluster.JobFailed as failed:
    reveal_type(failed.exit_code)
"""
TYPES = ("Run", "float | None", "Path | None", "str", "Result", "int")


@pytest.mark.slow
@pytest.mark.linux("the stand-in for macOS cannot run mypy")
def test_a_script_that_uses_the_package_is_checked_by_mypy_strict(tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(USES)
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nmypy_path = {ROOT / 'launcher'}\n")

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", config, tmp_path / "uses.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stdout
    revealed = [line.rsplit('"', 2)[1] for line in done.stdout.splitlines() if "Revealed" in line]
    assert [kind.rpartition(".")[2] for kind in revealed] == list(TYPES)
