"""A run waits in a queue until its nodes are allocated; its backend is the template."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.forked import COMMAND
from tests.installed_template import install
from tests.integration.commandline import CommandLine, wait_for

SHOW = "import os; print(os.environ['TF_CONFIG'], flush=True)"


class Queue:
    """A command line with the template backend, and the slots of its queue."""

    def __init__(self, shell: CommandLine, package: Path) -> None:
        self.shell, self.slots = shell, shell.root / "queue"
        self.slots.mkdir()
        shell.env["PYTHONPATH"] = str(package)
        shell.script("train.py", SHOW)
        job = {"script": "train.py", "hooks": "off"}
        runtime = {"backend": "template", "template": {"queue": str(self.slots)}}
        self.spec = shell.spec("spec.json", job, runtime=runtime)

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COMMAND, *args],
            env=self.shell.env,
            cwd=self.shell.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def say(self, *args: str) -> str:
        out, err = self.start(*args).communicate(timeout=200)
        return out + err

    def free(self, *hosts: str) -> None:
        for host in hosts:
            (self.slots / f"{host}.free").touch()

    def reasons(self) -> list[str]:
        if not list(self.shell.home.glob("runs/*/events.jsonl")):
            return []
        return [e["reason"] for e in self.shell.events() if e["type"] == "run_queued"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("package"))


@pytest.fixture
def queue(shell: CommandLine, package: Path) -> Queue:
    return Queue(shell, package)


def test_a_queued_run_says_why_and_starts_once_its_nodes_are_there(queue: Queue) -> None:
    up = queue.start("up", str(queue.spec))
    wait_for(lambda: queue.reasons() == ["0 of 2 slots are free"])
    (listed,) = queue.say("ps").splitlines()[1:]
    assert "queued" in listed
    assert "  0 of 2 slots are free" in listed
    status = queue.say("status")
    assert "queued" in status
    assert "nodes: 0 of 2 slots are free" in status

    queue.free("127.0.0.1", "localhost")
    _, err = up.communicate(timeout=200)
    assert up.returncode == 0, err
    assert "queued: 0 of 2 slots are free" in err
    assert "the nodes are there: 127.0.0.1, localhost" in err
    (allocated,) = [e for e in queue.shell.events() if e["type"] == "nodes_allocated"]
    assert allocated["hosts"] == {"node-0": "127.0.0.1", "node-1": "localhost"}
    config = json.loads(queue.shell.log("worker:1"))
    hosts = [address.partition(":")[0] for address in config["cluster"]["worker"]]
    assert hosts == ["127.0.0.1", "localhost"]
    assert f"127.0.0.1:{config['cluster']['worker'][0].rpartition(':')[2]}" in err
    assert sorted(path.suffix for path in queue.slots.iterdir()) == [".free", ".free"]


def test_a_queued_run_can_be_stopped_and_takes_no_nodes(queue: Queue) -> None:
    up = queue.start("up", str(queue.spec))
    queue.free("127.0.0.1")
    wait_for(lambda: queue.reasons()[-1:] == ["1 of 2 slots are free"])
    assert "stopping" in queue.say("down")
    _, err = up.communicate(timeout=200)
    assert up.returncode == 143, err
    assert [path.name for path in queue.slots.iterdir()] == ["127.0.0.1.free"]
    assert queue.shell.state()["status"] == "interrupted"


def test_a_plan_for_a_queue_shows_that_hosts_are_chosen_at_the_start(queue: Queue) -> None:
    plan = queue.say("plan", str(queue.spec))
    assert "worker:0  node-0  chosen at start" in plan


def test_the_section_of_a_package_is_checked_as_the_rest_of_the_spec(queue: Queue) -> None:
    sets = ("--set", "runtime.template.poll_s=0", "--set", "runtime.template.queu=/q")
    said = queue.say("validate", str(queue.spec), *sets[:2])
    assert "--set runtime.template.poll_s=0: runtime.template.poll_s: " in said
    said = queue.say("validate", str(queue.spec), *sets[2:])
    assert "unknown key 'queu' in runtime.template" in said
    assert 'did you mean "queue"?' in said
