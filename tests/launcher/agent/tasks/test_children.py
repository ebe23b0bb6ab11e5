"""A child of a task that trains reports, stops and fails as the task itself would."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.agent.conftest import Rig, wait_until

pytestmark = pytest.mark.linux("children of a task are recognized by /proc")

BOOT = Path(__file__).parents[4] / "workers" / "tfcluster_workers" / "boot.py"
ENV = {"TFCLUSTER_RUN_ID": "run-1", "TFCLUSTER_TASK": "worker:0", "TFCLUSTER_ATTEMPT": "1"}
CALLS = "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'train.py']))\n"
CHECKS = "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py'], check=True)\n"
TRAINS = """
import os, sys, time
from tfcluster_workers import reporting

def train(name, steps):
    for step in range(1, steps + 1):
        reporting.progress(step, metrics={name: step})

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""


class Job:
    """A task whose script is `main.py`, in a folder with further scripts."""

    def __init__(self, rig: Rig, **scripts: str) -> None:
        self.rig, self.folder = rig, rig.folder / "job"
        self.folder.mkdir()
        for name, text in scripts.items():
            (self.folder / f"{name}.py").write_text(text)

    def start(self) -> dict[str, Any]:
        argv = (sys.executable, str(BOOT), "script", str(self.folder / "main.py"))
        return self.rig.start(*argv, env=ENV, cwd=str(self.folder))

    def end(self) -> dict[str, Any]:
        """Wait for the task's end; return how it ended."""
        exited = self.rig.exited()
        assert exited["exit_code"] is not None or exited["signal"] is not None
        return exited

    def run(self) -> dict[str, Any]:
        self.start()
        return self.end()

    def await_log(self, text: str) -> None:
        wait_until(lambda: text.encode() in self.rig.log().read_bytes())

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one type that have come so far."""
        messages = self.rig.peer.messages
        reports = [one["event"] for one in messages if one["type"] == "task_event"]
        return [event for event in reports if event["type"] == kind]

    def steps(self) -> list[tuple[str, int]]:
        """Return who trained, as the metrics say, and their last step, which may have none."""
        found: dict[str, int] = {}
        for event in self.events("progress"):
            (name,) = event.get("metrics") or list(found)[-1:]
            found[name] = event["step"]
        return list(found.items())


NewJob = Callable[..., Job]


@pytest.fixture
def job(rig: Rig) -> NewJob:
    return lambda **scripts: Job(rig, **scripts)


@pytest.mark.parametrize(("end", "code"), [("", 0), ("os.kill(os.getpid(), 9)", 256 - 9)])
def test_the_steps_of_a_child_are_those_of_the_task_even_if_it_is_killed(
    job: NewJob, end: str, code: int
) -> None:
    one = job(main=CALLS, train=TRAINS + f"train('child', 777)\n{end}")
    assert one.run()["exit_code"] == code
    assert one.steps() == [("child", 777)]


@pytest.mark.parametrize("main", [CALLS, "import train"])
def test_a_step_that_is_held_back_is_known_while_the_next_one_takes_long(
    job: NewJob, main: str
) -> None:
    one = job(main=main, train=TRAINS + "train('child', 7)\nwait_for('over')")
    one.start()
    while one.steps() != [("child", 7)]:
        assert one.rig.peer.read()
    (one.folder / "over").touch()
    assert one.end()["exit_code"] == 0


def test_a_task_that_trains_itself_is_not_disturbed_by_its_children(job: NewJob) -> None:
    main = TRAINS + "train('task', 3)\nimport subprocess\n"
    main += "subprocess.run([sys.executable, 'train.py'], check=True)\ntrain('task', 5)"
    one = job(main=main, train=TRAINS + "train('child', 7)")
    assert one.run()["exit_code"] == 0
    assert one.steps() == [("task", 5)]


def test_a_task_that_begins_to_train_takes_over_from_its_child(job: NewJob) -> None:
    main = TRAINS + "import subprocess\nchild = subprocess.Popen([sys.executable, 'train.py'])\n"
    main += "wait_for('began')\ntrain('task', 5)\nopen('over', 'w')\nsys.exit(child.wait())"
    train = TRAINS + "train('child', 2)\nopen('began', 'w')\nwait_for('over')\ntrain('child', 9)"
    one = job(main=main, train=train)
    assert one.run()["exit_code"] == 0
    assert [name for name, _ in one.steps()] == ["child", "task"]
    assert one.events("progress")[-1]["metrics"] == {"task": 5}


def test_one_child_reports_at_a_time_and_a_later_one_may_follow(job: NewJob) -> None:
    main = TRAINS + "import subprocess\nbegin = lambda *a: subprocess.Popen([sys.executable, *a])\n"
    main += "first = begin('train.py', 'first')\nwait_for('first')\n"
    main += "begin('train.py', 'second').wait()\nopen('over', 'w')\nfirst.wait()\n"
    main += "begin('train.py', 'third').wait()\n"
    train = TRAINS + "name = sys.argv[1]\ntrain(name, 2)\nopen(name, 'w')\n"
    train += "if name == 'first':\n    wait_for('over')\n    train(name, 4)\n"
    one = job(main=main, train=train)
    assert one.run()["exit_code"] == 0
    assert one.steps() == [("first", 4), ("third", 2)]


@pytest.mark.parametrize(
    "start",
    [
        "os.execv(sys.executable, [sys.executable, 'train.py'])",
        "sys.exit(os.system(sys.executable + ' train.py'))",
        "import subprocess; subprocess.run(['sh', '-c', f'cd .; {sys.executable} train.py; :'])",
        "os.environ['X'] = '1'\nimport subprocess\n"
        "subprocess.run([sys.executable, '-m', 'train'], env=dict(os.environ), check=True)",
        "import multiprocessing, train\n"
        "multiprocessing.get_context('fork').Process(target=train.go).start()",
        "import multiprocessing, train\n"
        "multiprocessing.get_context('spawn').Process(target=train.go).start()",
        "import subprocess\nsubprocess.Popen(['setsid', sys.executable, 'train.py']).wait()",
    ],
    ids=["exec", "system", "shell", "module", "fork", "spawn", "session"],
)
def test_a_child_may_be_started_in_many_ways(job: NewJob, start: str) -> None:
    main = f"import os, sys\nif __name__ == '__main__':\n    exec({start!r})"
    train = TRAINS + "def go():\n    train('child', 7)\nif __name__ == '__main__':\n    go()"
    one = job(main=main, train=train)
    assert one.run()["exit_code"] == 0, one.rig.log().read_text()
    assert one.steps() == [("child", 7)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_that_fits_models_does_not_report_for_the_task(job: NewJob, method: str) -> None:
    """Keras's `fit` in a worker of a pool is rarely the training; to join the cluster always is."""
    main = "import multiprocessing, work\nif __name__ == '__main__':\n"
    main += f"    with multiprocessing.get_context({method!r}).Pool(1) as pool:\n"
    main += "        pool.apply(work.fit)\n        print('fitted', flush=True)\n"
    main += "        pool.apply(work.join)\n        pool.apply(work.fit)\n"
    work = "from tfcluster_workers import reporting\n"
    work += "def fit():\n    reporting.training_begins()\n    reporting._alive_at = 0\n"
    work += "    reporting.step_done(reporting.Reading(3, metrics=lambda: {'fit': 3}))\n"
    work += "    reporting.finished()\n"
    work += "def join():\n    reporting.waiting_for_peers()\n    reporting.ready()\n"
    one = job(main=main, work=work)
    assert one.run()["exit_code"] == 0, one.rig.log().read_text()
    reports = [m["event"]["type"] for m in one.rig.peer.messages if m["type"] == "task_event"]
    assert reports[:2] == ["waiting_for_peers", "task_ready"]
    assert one.steps() == [("fit", 3)]


FAILS = TRAINS + "import keras\n{train}raise ValueError('bad data')"
TRAINED = "train('child', 3)\n"


@pytest.mark.parametrize("train", ["", TRAINED], ids=["before", "while"])
@pytest.mark.parametrize("main", [CALLS, CHECKS], ids=["exit code", "CalledProcessError"])
def test_the_exception_of_a_child_is_that_of_the_task(job: NewJob, main: str, train: str) -> None:
    """It may be raised before or while it trains; the package `keras` attaches the hooks."""
    one = job(main=main, train=FAILS.replace("{train}", train), keras="")
    assert one.run()["exit_code"] == 1
    (error,) = one.events("task_error")
    assert (error["exception"], error["message"]) == ("ValueError", "bad data")
    assert error["file"] == str(one.folder / "train.py")
    said = one.rig.log().read_text()
    assert said.count("ValueError: bad data") == 1
    assert "tfcluster_workers" not in said.partition("CalledProcessError")[0]


def test_a_later_exception_of_the_task_itself_counts(job: NewJob) -> None:
    main = CALLS.replace("sys.exit", "print") + "raise KeyError('its own')"
    one = job(main=main, train=FAILS.replace("{train}", TRAINED), keras="")
    one.run()
    (error,) = one.events("task_error")
    assert error["exception"] == "KeyError"


def test_a_child_that_failed_before_a_better_one_is_forgotten(job: NewJob) -> None:
    main = "import subprocess, sys\nsubprocess.call([sys.executable, 'train.py'])\n"
    main += "subprocess.call([sys.executable, 'again.py'])\nsys.exit(3)"
    fails = FAILS.replace("{train}", TRAINED)
    one = job(main=main, train=fails, again=TRAINS + TRAINED, keras="")
    assert one.run()["exit_code"] == 3
    assert one.events("task_error") == []


def test_a_task_that_succeeds_although_its_training_failed_says_so(job: NewJob) -> None:
    main = CALLS.replace("sys.exit", "print")
    one = job(main=main, train=FAILS.replace("{train}", TRAINED), keras="")
    assert one.run()["exit_code"] == 0
    assert one.events("task_error") == []
    (doubt,) = one.events("doubt")
    assert (doubt["about"], doubt["exception"]) == ("child", "ValueError")
    assert doubt["message"] == "bad data"


IN_FIT = """
from tfcluster_workers import doubts
doubts.fit_begins()
train("it", 3)
{then}
os._exit(0)
"""


@pytest.mark.parametrize("who", ["task", "child"])
@pytest.mark.parametrize(("then", "is_doubtful"), [("", True), ("doubts.fit_ends(None)", False)])
def test_a_process_that_ends_inside_of_fit_is_known(
    job: NewJob, who: str, then: str, is_doubtful: bool
) -> None:
    script = TRAINS + IN_FIT.format(then=then)
    one = job(main=script) if who == "task" else job(main=CALLS, train=script)
    assert one.run()["exit_code"] == 0
    assert one.steps() == [("it", 3)]
    assert one.events("doubt") == [{"type": "doubt", "about": "fit"}] * is_doubtful


def test_a_helper_whose_failure_the_script_handles_is_no_concern(job: NewJob) -> None:
    main = CALLS.replace("sys.exit", "print")
    one = job(main=main, train=FAILS.replace("{train}", ""), keras="")
    assert one.run()["exit_code"] == 0
    assert (one.events("task_error"), one.events("note")) == ([], [])


def test_a_task_that_leaves_its_training_behind_says_so(job: NewJob) -> None:
    main = TRAINS + "import subprocess\nsubprocess.Popen([sys.executable, 'train.py'])\n"
    one = job(
        main=main + "wait_for('began')",
        train=TRAINS + TRAINED + "open('began', 'w')\nwait_for('never')",
    )
    assert one.run()["exit_code"] == 0
    assert "before its child process, which trains, had ended" in str(one.events("note"))


def test_a_child_that_saves_its_state_gets_the_whole_grace_period(job: NewJob) -> None:
    """The script that started it ends with SIGTERM at once."""
    train = TRAINS + "import signal\ndef save(*_):\n    time.sleep(1)\n    open('saved', 'w')\n"
    train += "    os._exit(0)\nsignal.signal(signal.SIGTERM, save)\ntrain('child', 1)\n"
    train += "reporting.saves_on_sigterm()\nprint('trains', flush=True)\nwait_for('never')"
    one = job(main=CALLS, train=train)
    one.start()
    one.await_log("trains")
    one.rig.stop(grace_s=60)
    assert one.end()["signal"] == signal.SIGTERM
    assert (one.folder / "saved").exists()
    assert len(one.events("saves_on_sigterm")) == 1


@pytest.mark.parametrize("stderr", ["None", "subprocess.DEVNULL"], ids=["shown", "captured"])
def test_the_stacks_of_a_task_are_those_of_its_child(job: NewJob, stderr: str) -> None:
    main = CALLS.replace("'train.py']", f"'train.py'], stderr={stderr}")
    train = TRAINS + TRAINED + "print('waits', flush=True)\nwait_for('finish')"
    one = job(main=main, train=train)
    one.start()
    one.await_log("waits")
    for _ in range(2):
        one.rig.peer.send("take_stacks", tasks=["worker:0"])
        frames = one.rig.peer.take("stacks")["threads"][0]["frames"]
        assert [frame["function"] for frame in frames[-2:]] == ["wait_for", "<module>"]
        assert frames[-1]["file"] == str(one.folder / "train.py")
    (one.folder / "finish").touch()
    assert one.end()["exit_code"] == 0


UNHOOKED = """
import mmap, os
file = open("libtensorflow_framework.so.2", "w+b")
file.truncate(4096)
page = mmap.mmap(file.fileno(), 4096)
while not os.path.exists("finish"):
    os.stat(".")
"""


def test_a_child_without_hooks_that_uses_tensorflow_is_named(job: NewJob) -> None:
    main = CALLS.replace("sys.executable, ", "sys.executable, '-E', ")
    one = job(main=main, train=UNHOOKED)
    one.start()
    event = one.rig.peer.take("task_event")["event"]
    assert event["type"] == "trains_in_child"
    assert event["command"].endswith("-E train.py")
    (one.folder / "finish").touch()
    assert one.end()["exit_code"] == 0


def test_no_other_process_reports_for_a_task(job: NewJob) -> None:
    one = job(main=TRAINS + "print('up', flush=True)\nwait_for('finish')")
    one.start()
    one.await_log("up")
    path = str(one.rig.config.socket) + "s"
    hello = {"task": "worker:0", "attempt": "1", "claims": True}
    for raw in (
        json.dumps(hello).encode(),
        json.dumps({**hello, "task": "worker:1"}).encode(),
        json.dumps({**hello, "attempt": ["1"]}).encode(),
        json.dumps({**hello, "claims": False, "event": {"type": ["task_error"]}}).encode(),
        b"[" * 60_000,
        b"",
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.connect(path)
            other.settimeout(40)
            other.send(raw)
            assert other.recv(100) == b""
    (one.folder / "finish").touch()
    assert one.end()["exit_code"] == 0
    assert os.path.exists(path)
