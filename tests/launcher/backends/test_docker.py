"""Docker's arguments are built and its messages read; tests/integration tests with a daemon."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from tfcluster.backends import past_runs
from tfcluster.backends.base import RunContext
from tfcluster.backends.docker import containers, leftovers
from tfcluster.backends.docker.client import DockerError, is_here, plain
from tfcluster.backends.docker.containers import RunningContainer, as_user, run_argv
from tfcluster.backends.docker.docker_nodes import DockerNodes
from tfcluster.node_loss import LossNature
from tfcluster.plans.plan import Container, Interpreter, NodePlan

BARE = NodePlan(
    name="worker-1",
    backend="docker",
    interpreter=Interpreter("python3", "the image's"),
    workdir="~/work",
    container=Container("image:1"),
)
CONTAINER = RunningContainer("run-worker-1", "worker-1", "run")


DAEMON = "Error response from daemon: "


def arguments(container: Container, user: tuple[str, ...] = ()) -> list[str]:
    return run_argv(replace(BARE, container=container), CONTAINER, "run", user)


def after(argv: list[str], option: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == option]


def test_a_container_has_names_and_labels_and_publishes_no_port() -> None:
    argv = arguments(Container("image:1"))
    assert argv[:5] == ["run", "--detach", "--init", "--pull", "never"]
    assert after(argv, "--name") == ["run-worker-1"]
    assert after(argv, "--hostname") == after(argv, "--network-alias") == ["worker-1"]
    assert after(argv, "--network") == ["run"]
    assert "tfcluster.run=run" in after(argv, "--label")
    assert after(argv, "--entrypoint") == ["python3"]
    assert after(argv, "--security-opt") == ["no-new-privileges"]
    assert after(argv, "--pids-limit") == ["16384"]
    assert not {"-p", "-P", "--publish", "--publish-all", "--privileged"} & set(argv)
    assert not {"--memory", "--cpus", "--gpus", "--mount", "--user"} & set(argv)


def test_the_command_for_files_is_safe_to_paste(tmp_path: Path) -> None:
    nodes = DockerNodes([BARE], RunContext("run", tmp_path))
    command = nodes.fetch_command("worker-1", PurePosixPath("/the re; id #"))
    assert command == "docker cp 'run-worker-1:/the re; id #' ."


def test_limits_become_dockers_options() -> None:
    argv = arguments(Container("i", cpus=2, cores=(0, 3), memory="2g", gpus=(1, 2)))
    assert after(argv, "--cpus") == ["2"]
    assert after(argv, "--cpuset-cpus") == ["0,3"]
    assert after(argv, "--memory") == after(argv, "--memory-swap") == ["2g"]
    assert after(argv, "--gpus") == ['"device=1,2"']
    assert after(arguments(Container("i", gpus="all")), "--gpus") == ["all"]


@pytest.mark.parametrize(
    ("user", "options"),
    [
        ("root", ("--user", "root")),
        ("0:0", ("--user", "0:0")),
        ("anna", ("--user", "anna")),
        ("65534:65534", ("--user", "65534:65534", "--env", "HOME=/tmp")),
    ],
)
def test_a_numeric_user_other_than_root_gets_a_home_folder(
    user: str, options: tuple[str, ...]
) -> None:
    assert as_user(user) == options


def test_data_is_mounted_read_only_and_a_comma_in_a_path_is_quoted() -> None:
    argv = arguments(Container("i", data_dir="/a,readwrite", shared_dir="/s"), ("--user", "5:6"))
    assert after(argv, "--mount") == [
        'type=bind,"source=/a,readwrite","target=/a,readwrite",readonly',
        "type=bind,source=/s,target=/s",
    ]
    assert after(argv, "--user") == ["5:6"]


@pytest.mark.parametrize(
    ("state", "line", "reason", "nature"),
    [
        ({"ExitCode": 137, "OOMKilled": True}, "", "more memory than resources.memory allows",
         LossNature.OUT_OF_MEMORY),
        ({"ExitCode": 137, "OOMKilled": False}, "", "was killed (docker kill",
         LossNature.INFRASTRUCTURE),
        ({"ExitCode": 127}, "exec python3 failed", "exit code 127: exec python3 failed",
         LossNature.OWN_FAILURE),
        ({"ExitCode": 0}, "", "ended with exit code 0", LossNature.OWN_FAILURE),
        ({"ExitCode": 128, "Error": "no such device"}, "x", "exit code 128: no such device",
         LossNature.OWN_FAILURE),
    ],
)  # fmt: skip
def test_the_end_of_a_container_is_described(
    state: dict[str, object], line: str, reason: str, nature: LossNature
) -> None:
    loss = containers.describe_end("name", state, line)
    assert reason in loss.reason
    assert loss.nature is nature


@pytest.mark.parametrize(
    ("stderr", "message", "fix"),
    [
        ("docker: Cannot connect to the Docker daemon at x.\n\nRun 'docker run --help' for more",
         "Cannot connect to the Docker daemon at x.", "DOCKER_HOST"),
        ("permission denied while trying to connect to the Docker daemon socket",
         "permission denied while trying", "usermod -aG docker"),
        (f"{DAEMON}could not find an available, non-overlapping IPv4 address pool",
         "could not find an available", "docker network prune"),
        (f"{DAEMON}pull access denied for a, repository does not exist",
         "pull access denied for a", "check runtime.image"),
        ("something new", "something new", "docker info"),
    ],
)  # fmt: skip
def test_a_refusal_has_dockers_message_and_a_fix(stderr: str, message: str, fix: str) -> None:
    error = DockerError("the container does not start", plain(stderr.encode()))
    assert error.message.startswith(f"the container does not start: {message}")
    assert "Run 'docker" not in error.message
    assert error.fix is not None
    assert fix in error.fix


def test_the_daemons_machine_is_found_from_host_context_and_configuration(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    assert is_here(home)
    assert is_here(home | {"DOCKER_HOST": "unix:///run/user/5/docker.sock"})
    assert not is_here(home | {"DOCKER_HOST": "ssh://gpu1"})
    assert not is_here(home | {"DOCKER_CONTEXT": "far"})  # no client knows the context
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"currentContext": "far"}))
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho tcp://10.0.0.9:2376\n")
    docker.chmod(0o755)
    assert not is_here(home)
    docker.write_text("#!/bin/sh\necho unix:///run/user/5/docker.sock\n")
    assert is_here(home)


def test_only_a_dead_coordinator_of_this_user_and_host_leaves_leftovers() -> None:
    _, own_name = leftovers.labels("run")[-1].split("=")
    assert not past_runs.is_orphan(own_name)  # the coordinator is this process
    this_host = f"{socket.gethostname()}/{os.getuid()}"
    assert past_runs.is_orphan(f"{this_host}/{os.getpid()}/1")  # its process id was reused
    assert not past_runs.is_orphan(f"elsewhere/{os.getuid()}/1/1")
    assert not past_runs.is_orphan(f"{socket.gethostname()}/{os.getuid() + 1}/1/1")
    assert not past_runs.is_orphan("")
