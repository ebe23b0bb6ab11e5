"""Faults of containers and their daemon end as designed, are reported and leave nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from tests.forked import COMMAND
from tests.integration.commandline import CommandLine, wait_for
from tests.integration.gang import GANG
from tests.integration.hosts.office import COUNT, is_whole
from tests.integration.live import Live
from tests.integration.saving import SAVES
from tests.lab.docker_images import STUB
from tests.lab.dockerd import Dockerd

from .harbor import HANG_S, RELEASE, Harbor, ended

pytestmark = pytest.mark.slow


def reason_of_restart(run: Live) -> str:
    return str(run.of_type("restarting")[0]["reason"])


def test_a_killed_container_is_replaced(harbor: Harbor) -> None:
    run = harbor.up(harbor.spec(count=3, lasts=True, supervision={"backoff_s": 0}))
    run.wait_for_line("line 3")
    harbor.docker("kill", harbor.container(run))
    ended(run)
    assert f"its container {harbor.container(run)} was killed" in reason_of_restart(run)
    assert run.log("worker:1", attempt=2).splitlines() == ["line 0", "line 1", "line 2"]


def test_a_replaced_container_is_prepared_again(harbor: Harbor) -> None:
    harbor.shell.script("prepare.py", 'open("prepared", "w").write("yes")')
    job = {
        "script": "train.py",
        "hooks": "off",
        "env": {"COUNT": "3", "RELEASE": RELEASE},
        "prepare": {"script": "prepare.py"},
    }
    script = f"assert open('prepared').read() == 'yes'\n{COUNT}"
    run = harbor.up(harbor.spec(script, job=job, supervision={"backoff_s": 0}))
    run.wait_for_line("line 3")
    harbor.docker("kill", harbor.container(run))
    ended(run)
    assert run.log("worker:1", attempt=2).splitlines() == ["line 0", "line 1", "line 2"]


@pytest.fixture
def image(harbor: Harbor) -> Iterator[str]:
    """Another name of the stub image, which a test may remove."""
    name = "tfcluster-tests-grow:latest"
    harbor.docker("tag", STUB, name)
    yield name
    harbor.docker("tag", STUB, name)
    harbor.docker("rmi", name)


def test_a_gang_takes_a_container_in_again_once_it_can_be_made(harbor: Harbor, image: str) -> None:
    job = {"script": "train.py", "hooks": "off", "env": {"WORKERS": "3", "ATTEMPT": "3"}}
    supervision = {"backoff_s": 0, "max_restarts": 0, "min_workers": 2, "grow_every_s": 0.1}
    sections: dict[str, Any] = {
        "job": job,
        "supervision": supervision,
        "runtime": {"image": image},
        "workers": 3,
    }
    run = harbor.up(harbor.spec(SAVES, **sections))
    run.wait_for_line("step 3", "worker:0", "worker:1", "worker:2")
    harbor.docker("rmi", "--force", image)
    harbor.docker("kill", harbor.container(run, "worker-2"))
    wait_for(lambda: "2 workers" in run.log("worker:0", 2), timeout=HANG_S, what="a gang of two")
    assert not run.of_type("node_back")
    harbor.docker("tag", STUB, image)
    ended(run)
    assert run.of_type("restarting")[-1]["reason"] == "worker:2 is back: growing to 3 workers"
    assert "3 workers from step" in run.log("worker:2", 3)


def test_a_paused_container_is_reported_and_replaced_after_its_lease(harbor: Harbor) -> None:
    supervision = {"backoff_s": 0, "lease_s": 4}
    run = harbor.up(harbor.spec(count=3, lasts=True, supervision=supervision))
    run.wait_for_line("line 3")
    harbor.docker("pause", harbor.container(run))
    ended(run)
    assert f"`docker unpause {harbor.container(run)}` resumes it" in run.said()
    assert "is paused" in reason_of_restart(run)


def test_a_container_that_is_unpaused_in_time_loses_nothing(harbor: Harbor) -> None:
    run = harbor.up(harbor.spec(lasts=True))
    run.wait_for_line("line 3")
    harbor.docker("pause", harbor.container(run))
    wait_for(lambda: "is paused" in run.said(), what="the pause is told")
    harbor.docker("unpause", harbor.container(run))
    harbor.release(run)
    ended(run)
    assert is_whole(run.log("worker:1"))
    assert not run.of_type("restarting")


GREEDY = """
import os
taken = []
while os.environ["TFCLUSTER_TASK"] == "worker:1":
    taken.append(bytearray(os.urandom(1 << 20)))
import time; time.sleep(600)
"""


def test_a_task_over_its_memory_limit_is_named(harbor: Harbor) -> None:
    run = harbor.up(
        harbor.spec(GREEDY, resources={"memory": "80m"}, supervision={"max_restarts": 0})
    )
    ended(run, 1)
    (diagnosis,) = run.of_type("diagnosis")
    assert diagnosis["root_cause"]["task"] == "worker:1"
    assert diagnosis["root_cause"]["kind"] == "out_of_memory", diagnosis


def test_a_container_taken_off_the_network_is_named_and_reconnected(harbor: Harbor) -> None:
    run = harbor.up(harbor.spec(GANG, count=10, supervision={"backoff_s": 0}))
    run.wait_for_line("step 5")
    harbor.docker("network", "disconnect", run.run_id, harbor.container(run))
    ended(run)
    (cause,) = (event["root_cause"] for event in run.of_type("diagnosis"))
    assert (cause["kind"], cause["node"]) == ("link_lost", "worker-1"), cause
    said = " ".join(run.said().split())
    assert f"{harbor.container(run)} was taken off the network {run.run_id}" in said
    assert len(run.of_type("restarting")) == 1


def test_a_daemon_that_is_down_for_a_while_stops_no_task(
    dockerd: Dockerd, shell: CommandLine
) -> None:
    dockerd.restart(live_restore=True)
    harbor = Harbor(shell, dockerd.docker)
    run = harbor.up(harbor.spec(lasts=True))
    run.wait_for_line("line 5")
    dockerd.stop()
    wait_for(lambda: run.of_type("node_unreachable"), what="the loss of a container")
    dockerd.start()
    harbor.release(run)
    ended(run)
    for task in ("worker:0", "worker:1"):
        assert is_whole(run.log(task))
    assert not run.of_type("restarting")
    assert harbor.left() == []
    dockerd.restart(live_restore=False)


def test_a_daemon_that_does_not_come_back_ends_the_run(
    dockerd: Dockerd, shell: CommandLine
) -> None:
    harbor = Harbor(shell, dockerd.docker)
    run = harbor.up(harbor.spec(lasts=True, supervision={"lease_s": 3, "max_restarts": 0}))
    run.wait_for_line("line 5")
    dockerd.stop()
    assert run.end(100) in (1, 3), run.said()
    assert "Cannot connect to the Docker daemon" in " ".join(run.said().split())
    dockerd.start()
    done = shell.run("down", run.run_id)
    assert done.code == 0, done.err
    wait_for(lambda: harbor.left() == [], what="what was left is removed")
    wait_for(lambda: not sweepers(run.run_id), what="the sweeper has ended")


def test_the_reason_why_a_container_cannot_start_is_named(harbor: Harbor) -> None:
    def refused(*more: str, **env: str) -> str:
        done = harbor.shell.run("up", str(harbor.spec()), *more, env=harbor.shell.env | env)
        assert done.code == 3, done.err
        return " ".join(done.err.split())

    said = refused("--set", "runtime.image=127.0.0.1:9/no-such:1")
    assert "docker has no image 127.0.0.1:9/no-such:1 and cannot pull it" in said
    said = refused("--set", "runtime.image=tfcluster-worker:tf1.15")
    assert "docker has no image tfcluster-worker:tf1.15" in said
    assert "`tfcluster build --tensorflow 1.15` makes it" in said
    said = refused(DOCKER_HOST="unix:///run/no-such.sock")
    assert "Cannot connect to the Docker daemon at unix:///run/no-such.sock" in said
    assert "is the daemon running?" in said
    empty = harbor.shell.root / "empty"
    empty.mkdir()
    (empty / "python3").symlink_to(shutil.which("python3") or "/usr/bin/python3")
    for tool in ("sh", "cat", "sleep"):
        (empty / tool).symlink_to(f"/bin/{tool}")
    said = refused(PATH=str(empty))
    assert "there is no docker client on this machine" in said
    assert "has not removed" not in said


def test_a_docker_socket_without_permission_is_named(harbor: Harbor) -> None:
    """Root gets the message, too, once it has dropped the capability to override permissions."""
    path = harbor.shell.root / "d.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        os.chown(path, 65534, 65534)
        path.chmod(0o600)
        argv = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", "--"]
        env = harbor.shell.env | {"DOCKER_HOST": f"unix://{path}"}
        command = [*argv, COMMAND, "up", str(harbor.spec())]
        done = subprocess.run(
            command, env=env, cwd=harbor.shell.cwd, capture_output=True, text=True, timeout=200
        )
    said = " ".join(done.stderr.split())
    assert done.returncode == 3, said
    assert "permission denied" in said
    assert "usermod -aG docker" in said


def sweeper_of(run: Live) -> psutil.Process:
    (sweeper,) = sweepers(run.run_id)
    return sweeper


def sweepers(run_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "sh" and f"tfcluster.run={run_id}" in process.cmdline():
                found.append(process)
    return found


def assert_removed_by_the_sweeper(harbor: Harbor, run: Live) -> None:
    wait_for(lambda: harbor.left() == [], what="containers and network are removed")
    # The sweeper checks twice: an order may have been under way when the coordinator was killed.
    wait_for(lambda: not sweepers(run.run_id), what="the sweeper has ended")
    assert harbor.shell.run("down", run.run_id).code == 0


def test_containers_that_a_killed_sweeper_left_are_shown_and_removed_by_label(
    harbor: Harbor,
) -> None:
    run = harbor.up(harbor.spec(lasts=True))
    run.wait_for_line("line 3")
    run_id, container = run.run_id, harbor.container(run)
    sweeper_of(run).kill()
    os.kill(run.state()["pid"], signal.SIGKILL)
    run.end()
    shown = harbor.shell.run("ps").err
    assert container in shown
    assert f"`tfcluster down {run_id}`" in shown
    done = harbor.shell.run("rm", run_id)  # now only the label identifies it
    assert done.code == 0, done.err
    done = harbor.shell.run("down", run_id)
    assert done.code == 0, done.err
    assert "removed from docker" in done.err
    assert run_id not in harbor.shell.run("ps").err


def test_the_lease_ends_containers_when_the_coordinator_is_silent(harbor: Harbor) -> None:
    """A remote daemon is in this situation when this machine goes down."""
    run = harbor.up(harbor.spec(lasts=True, supervision={"lease_s": 3}))
    run.wait_for_line("line 3")
    sweeper = sweeper_of(run)
    sweeper.suspend()
    os.kill(run.state()["pid"], signal.SIGKILL)
    running = ("ps", "--quiet", "--filter", f"label=tfcluster.run={run.run_id}")
    wait_for(lambda: harbor.docker(*running) == "", what="the containers have ended")
    sweeper.resume()
    assert_removed_by_the_sweeper(harbor, run)
