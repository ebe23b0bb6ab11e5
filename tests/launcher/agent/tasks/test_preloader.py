"""A task forked from the preloading process behaves like one that was started cold."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.agent.conftest import Rig, children_of, is_alive, kill, wait_until
from tests.launcher.agent.test_old_python import python39 as python39

pytestmark = pytest.mark.linux("forks with imported libraries")

BOOT = Path(__file__).parents[4] / "workers" / "tfcluster_workers" / "boot.py"

_ORIGIN = "forked: "
_PRINT_ORIGIN = (
    "import os, sys; os.write(1, b'forked: %r\\n' %"
    " (b'IMPORTER=' in open('/proc/self/environ', 'rb').read()))\n"
)
"""The first line of a script: it prints whether the script runs in a fork.

The first environment of a fork is the importer's.
"""

FACTS = """
import ctypes, gc, json, os, resource, signal, sys, __main__
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))  # PR_GET_PDEATHSIG
environ = {k: v for k, v in os.environ.items() if k != "TFCLUSTER_EVENTS_FD"}
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
kinds = [os.readlink(fd).partition(":")[0] for fd in fds if os.path.exists(fd)]
print(json.dumps({
    "argv": [sys.argv, getattr(sys, "orig_argv", None)], "path": sys.path,
    "main": [__name__, __file__, __main__.__dict__ is globals()], "flags": str(sys.flags),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "cwd": os.getcwd(), "environ": environ, "umask": status["Umask"].strip(),
    "group": os.getpgid(0) == os.getpid(), "parent": os.getppid(), "session": os.getsid(0),
    "ignored": status["SigIgn"].strip(), "caught": status["SigCgt"].strip(),
    "blocked": status["SigBlk"].strip(), "threads": status["Threads"].strip(),
    "handlers": [str(signal.getsignal(n)) for n in range(1, 32)], "death": death.value,
    "limits": [resource.getrlimit(n) for n in range(16)], "nice": os.nice(0),
    "cores": sorted(os.sched_getaffinity(0)), "stdin": sys.stdin.read(), "open": sorted(kinds),
    "out": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.errors, sys.stdout.name,
            sys.stdout.seekable(), sys.stderr.seekable()],
    "command": open("/proc/self/cmdline").read(),
}))
"""


class Stage:
    """An agent, its preloader, and scripts to run behind `boot`."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.python = sys.executable
        """The tasks' Python; the agent has its own."""

    def preload(
        self, *names: str, env: dict[str, str] | None = None, **order: Any
    ) -> dict[str, Any]:
        argv = [self.python, str(BOOT), "preload", *names]
        env = {**(env or {}), "IMPORTER": "yes"}  # only in the first environment of a fork
        self.rig.peer.send("preload", process={"argv": argv, "env": env}, **order)
        return self.rig.peer.take("preload_ready", "preload_failed")

    def start(
        self, code: str, *args: str, name: str = "main.py", fork: bool = True, **spec: Any
    ) -> dict[str, Any]:
        script = self.rig.folder / name
        script.write_text(_PRINT_ORIGIN + code)
        argv = [self.python, str(BOOT), "script", str(script), *args]
        return self.rig.start(*argv, preload=fork, **spec)

    def output(
        self,
        code: str,
        *args: str,
        task: str = "worker:0",
        fork: bool = True,
        is_fork: bool | None = None,
        **spec: Any,
    ) -> str:
        """Run a task to its end and return its output.

        Check that it is a fork if it was ordered to be one, or if `is_fork` says so.
        """
        before = len(self.log(task))
        started = self.start(code, *args, task=task, fork=fork, **spec)
        assert started["type"] == "task_started"
        self.exited = self.rig.exited(task)
        origin, _, output_text = self.log(task)[before:].partition("\n")
        if not origin.startswith(_ORIGIN):  # the output of the imports
            first, output_text = origin, output_text
            origin, _, output_text = output_text.partition("\n")
            output_text = f"{first}\n{output_text}"
        assert origin == f"{_ORIGIN}{fork if is_fork is None else is_fork}"
        return output_text

    def library(self, **modules: str) -> dict[str, str]:
        """Write modules, by name, into a folder and return the variables that find them there."""
        folder = self.rig.folder / "lib"
        folder.mkdir(exist_ok=True)
        for name, code in modules.items():
            (folder / f"{name}.py").write_text(code)
        return {"PYTHONPATH": str(folder)}

    def log(self, task: str = "worker:0") -> str:
        path = self.rig.log(task)
        return path.read_text() if path.exists() else ""

    @property
    def pid(self) -> int:
        """The pid of the preloading process: the agent's only child while no task runs."""
        (pid,) = children_of(self.rig.pid)
        return pid


@pytest.fixture
def stage(rig: Rig) -> Stage:
    return Stage(rig)


def test_a_fork_has_the_state_of_a_fresh_interpreter(stage: Stage) -> None:
    core = min(os.sched_getaffinity(0))
    spec: dict[str, Any] = {"cwd": str(stage.rig.folder), "env": {"NEW": "äöü=1"}, "cores": [core]}
    cold = json.loads(stage.output(FACTS, "--epochs", "3", fork=False, **spec))
    assert stage.preload("json", "decimal")["type"] == "preload_ready"
    forked = json.loads(stage.output(FACTS, "--epochs", "3", **spec))
    assert cold["command"].startswith(forked.pop("command").rstrip("\0"))
    del cold["command"]
    assert forked == cold
    assert forked["parent"] == stage.rig.pid


def test_modules_are_imported_only_once(stage: Stage) -> None:
    (stage.rig.folder / "lib").mkdir()
    (stage.rig.folder / "lib" / "heavy.py").write_text("import os; print('importing', os.getpid())")
    env = {"PYTHONPATH": str(stage.rig.folder / "lib")}
    assert stage.preload("heavy", env=env)["type"] == "preload_ready"
    importer = stage.pid
    for _ in range(2):
        output_text = stage.output("import heavy, os; print(os.getpid())", env=env).split()
        assert output_text[:2] == ["importing", str(importer)], (
            "a cold task would have printed that"
        )
        assert int(output_text[2]) != importer


@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [
        ("raise SystemExit(3)", 3, None),
        ("raise SystemExit('too bad')", 1, None),
        ("1 / 0", 1, None),
        ("import os; os._exit(9)", 9, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", None, signal.SIGSEGV),
        ("import atexit; atexit.register(print, 'bye')", 0, None),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(0.1,)).start()",
            0,
            None,
        ),
    ],
)
def test_a_fork_ends_like_a_fresh_interpreter(
    stage: Stage, code: str, exit_code: int | None, number: int | None
) -> None:
    cold = without_addresses(stage.output(code, fork=False))
    stage.preload("json")
    assert without_addresses(stage.output(code)) == cold
    assert (stage.exited["exit_code"], stage.exited["signal"]) == (exit_code, number)


def without_addresses(output: str) -> str:
    """Return the output with equal numbers of threads, which a crash writes before its stack."""
    return re.sub("0x[0-9a-f]+", "0x…", output)


def test_the_stacks_of_a_fork_can_be_dumped(stage: Stage) -> None:
    stage.preload("json")
    pid = stage.start("import time\nprint('there', flush=True)\ntime.sleep(60)")["pid"]
    wait_until(lambda: "there" in stage.log())
    os.kill(pid, signal.SIGUSR1)
    wait_until(lambda: "main.py" in stage.log())
    kill(pid)
    stage.rig.exited()


def test_random_numbers_differ_from_task_to_task(stage: Stage) -> None:
    stage.preload("random")
    code = "import random; print(random.random())"
    assert stage.output(code) != stage.output(code)


@pytest.mark.parametrize(("preloaded", "mine"), [("decimal", "decimal"), ("json", "random")])
def test_a_module_beside_the_script_precedes_one_of_the_preloader(
    stage: Stage, preloaded: str, mine: str
) -> None:
    """It is one that was asked for, or one that only the preloader itself needs."""
    (stage.rig.folder / f"{mine}.py").write_text("WHOSE = 'mine'")
    stage.preload(preloaded)
    assert stage.output(f"import {mine}; print({mine}.WHOSE)", is_fork=False) == "mine\n"
    if preloaded == mine:
        assert "decimal.py" in stage.rig.peer.take("preload_failed")["error"]


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True, name='beat').start()",
            "has started a thread (beat)",
        ),
        ("import socket\nlistener = socket.create_server(('127.0.0.1', 0))", "has opened a socket"),
    ],
)
def test_a_package_whose_import_forbids_a_fork_is_named_with_the_fix(
    stage: Stage, code: str, what: str
) -> None:
    env = stage.library(outer="import decimal, middle", middle="import busy", busy=code)
    answer = stage.preload("outer", env=env)
    assert answer["error"] == (
        f"the import of busy (outer → middle → busy) {what}, so no task can be forked: "
        "uninstall busy if the job does not use it, or "
        "set runtime.preload to off, which saves the attempt"
    )
    assert stage.output("print('cold')", is_fork=False) == "cold\n"


def test_a_package_that_the_job_itself_imports_need_not_be_uninstalled(stage: Stage) -> None:
    code = "import socket\nlistener = socket.create_server(('127.0.0.1', 0))"
    answer = stage.preload("server", env=stage.library(server=code))
    assert answer["error"] == (
        "the import of server has opened a socket, so no task can be forked: "
        "set runtime.preload to off, which saves the attempt"
    )


LIKE_ARROW = """
import ctypes, os, threading
if "background_thread:false" not in os.environ.get("JE_ARROW_MALLOC_CONF", ""):
    named = threading.Event()
    def run():
        ctypes.CDLL(None).prctl(15, b"jemalloc_bg_thd")  # PR_SET_NAME
        named.set()
        threading.Event().wait()
    threading.Thread(target=run, daemon=True).start()
    named.wait()
has_thread = threading.active_count() > 1
"""
"""A module that starts a thread at its import as Arrow's jemalloc does."""


@pytest.mark.parametrize(
    ("setting", "has_thread"), [(None, False), ("dirty_decay_ms:1", True), ("x:false", True)]
)
def test_arrows_thread_is_not_started_or_does_not_matter(
    stage: Stage, setting: str | None, has_thread: bool
) -> None:
    """What the user sets stays; a fork gets the user's value, or none."""
    env = stage.library(like_arrow=LIKE_ARROW)
    env |= {} if setting is None else {"JE_ARROW_MALLOC_CONF": setting}
    assert stage.preload("like_arrow", env=env)["type"] == "preload_ready"
    code = "import like_arrow; print(like_arrow.has_thread, os.environ.get('JE_ARROW_MALLOC_CONF'))"
    assert stage.output(code, env=env) == f"{has_thread} {setting}\n"


@pytest.mark.pinned  # TensorFlow's packages
def test_the_real_arrow_is_preloaded(stage: Stage) -> None:
    """It comes with TFDS, and allocates in a fork whether the thread was started or not."""
    code = (
        "import pyarrow\npool = pyarrow.jemalloc_memory_pool()\n"
        "print(pyarrow.allocate_buffer(1 << 20, memory_pool=pool).size)"
    )
    for env in ({}, {"JE_ARROW_MALLOC_CONF": "background_thread:true"}):
        assert stage.preload("pyarrow", env=env)["type"] == "preload_ready"
        assert stage.output(code, env=env) == f"{1 << 20}\n"


@pytest.mark.pinned  # TensorFlow's packages
def test_libraries_have_as_many_threads_in_a_fork_as_in_a_fresh_process(stage: Stage) -> None:
    """OpenBLAS and OpenMP of scikit-learn, and NumExpr, read their numbers at the import."""
    numexpr = (
        "import os, threading\ndef _init_num_threads(): return os.environ['NUMEXPR_NUM_THREADS']\n"
        "nthreads = _init_num_threads()"
    )
    spec: dict[str, Any] = {
        "env": stage.library(numexpr=numexpr)
        | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "3", "NUMEXPR_NUM_THREADS": "5"}
    }
    code = (
        "import numexpr, sklearn, threadpoolctl\n"
        "pools = threadpoolctl.threadpool_info()\n"
        "print(sorted((pool['prefix'], pool['num_threads']) for pool in pools), numexpr.nthreads)"
    )
    cold = stage.output(code, fork=False, **spec)
    assert "('libgomp', 3)" in cold
    assert stage.preload("numexpr", "sklearn", env=stage.library())["type"] == "preload_ready"
    assert stage.output(code, **spec) == cold


@pytest.mark.parametrize(
    ("name", "order", "words"),
    [
        ("no_such_module", {}, "ModuleNotFoundError"),
        ("json", {"env": {"PYTHONPATH": "lib"}}, "relative"),
        ("slow", {"within_s": 0.3}, "did not finish within"),
    ],
)
def test_a_failed_import_is_reported_and_tasks_start_cold(
    stage: Stage, name: str, order: dict[str, Any], words: str
) -> None:
    order = {"env": stage.library(slow="import time; time.sleep(60)"), **order}
    assert words in stage.preload(name, **order)["error"]
    wait_until(lambda: children_of(stage.rig.pid) == [])
    assert stage.output("print('cold')", is_fork=False) == "cold\n"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_tasks_start_cold_if_the_preloader_does_not_answer(stage: Stage, number: int) -> None:
    stage.preload("json")
    os.kill(stage.pid, number)
    assert stage.output("print('cold')", is_fork=False) == "cold\n"
    assert "has ended or does not answer" in stage.rig.peer.take("preload_failed")["error"]


def test_the_preloader_outlives_tasks_and_ends_with_the_agent_as_its_forks_do(stage: Stage) -> None:
    stage.preload("json")
    importer = stage.pid
    stage.output("print(1)")
    assert stage.pid == importer
    fork = stage.start("import time; time.sleep(60)")["pid"]
    kill(stage.rig.pid)
    wait_until(lambda: not is_alive(importer) and not is_alive(fork))


def test_a_fork_gets_a_large_environment(stage: Stage) -> None:
    stage.preload("json")
    env = {f"LARGE_{number}": "x" * 100_000 for number in range(5)}
    code = "print(sum(len(v) for k, v in os.environ.items() if k.startswith('LARGE_')))"
    assert stage.output(code, env=env) == "500000\n"


def test_the_first_pythonpath_folder_is_used_with_safe_path(stage: Stage) -> None:
    (stage.rig.folder / "lib").mkdir()
    (stage.rig.folder / "lib" / "decimal.py").write_text("WHOSE = 'mine'")
    env = {"PYTHONPATH": str(stage.rig.folder / "lib"), "PYTHONSAFEPATH": "1"}
    assert stage.preload("decimal", env=env)["type"] == "preload_ready"
    assert stage.output("import decimal; print(decimal.WHOSE)", env=env) == "mine\n"


def test_a_child_that_left_its_group_without_an_exec_ends_before_the_next_attempt(
    stage: Stage,
) -> None:
    """The marks of its own task alone identify the child while another task runs."""
    stage.preload("json")
    marks = {"TFCLUSTER_RUN_ID": "run-1", "TFCLUSTER_TASK": "worker:0", "TFCLUSTER_ATTEMPT": "1"}
    stage.start("import time; time.sleep(60)", task="worker:1", name="other.py")
    code = (
        "import time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        os.write(1, b'%d\\n' % os.getpid())\n"
        "        os.close(1), os.close(2), time.sleep(60)\n    os._exit(0)\n"
        "os.wait()\ntime.sleep(0.2)"
    )
    stray = int(stage.output(code, env=marks))
    assert is_alive(stray)
    stage.output("print('next attempt')", env={**marks, "TFCLUSTER_ATTEMPT": "2"})
    assert not is_alive(stray)


def test_stray_processes_end_and_the_preloader_keeps_running(stage: Stage) -> None:
    stage.preload("json")
    importer = stage.pid
    stray = stage.output(
        "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    )
    assert is_alive(int(stray))
    stage.output("print('next attempt')")
    assert not is_alive(int(stray))
    assert stage.pid == importer


def test_a_program_that_cannot_be_started_is_named(stage: Stage) -> None:
    stage.preload("json")
    answer = stage.start("print(1)", cwd="/no/such/folder")
    assert "/no/such/folder: No such file" in answer["error"]


def test_the_preloader_works_on_the_oldest_python_of_tasks(stage: Stage, python39: str) -> None:
    stage.python = python39
    spec: dict[str, Any] = {"cwd": str(stage.rig.folder)}
    cold = json.loads(stage.output(FACTS, fork=False, **spec))
    assert stage.preload("json")["type"] == "preload_ready"
    forked = json.loads(stage.output(FACTS, **spec))
    assert forked.pop("command").rstrip("\0") in cold.pop("command")
    assert forked == cold
