"""One container: the arguments that start it (`run_argv`), how its agent is reached, and why it
ended (`RunningContainer`)."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tfcluster.agent import foreign_json
from tfcluster.agent.containers import container_wait
from tfcluster.backends import relayed
from tfcluster.backends.docker.client import DockerError, ask, endpoint
from tfcluster.backends.docker.leftovers import labels
from tfcluster.errors import SetupError
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.plan import Container, NodePlan

_REMOVE_S = 30.0
_ANSWER_S = 10.0
_COPY_S = 900.0
_NO_FILE = re.compile("Could not find the file|no such file or directory", re.IGNORECASE)
SHM = "1g"
"""The size limit of /dev/shm: docker's default of 64 MB is too small for NCCL (NCCL documentation,
"Shared memory")."""
PROCESSES = "16384"
"""The limit of processes and threads; TensorFlow starts several threads per core. It keeps a job
that starts processes without end from using up the machine's."""
HOME = ("--env", "HOME=/tmp")
"""The option for a user without a home in the image, whose HOME may be another user's folder."""
NOBODY = "65534:65534"
_LOG_LINES = "20"
_ENDED = re.compile(
    r"^Error(?: response from daemon)?: .*(?:is not running|No such container|is restarting)",
    re.IGNORECASE | re.MULTILINE,
)
"""A message of docker itself; a program in the container may print the same words."""
_PAUSED = re.compile(r"is paused", re.IGNORECASE)
_KILLED = 137
"""128 + SIGKILL: the exit code of a container whose main process was killed."""

_STATE = "{{json .State}}"


@dataclass(slots=True)
class RunningContainer:
    """A container, by name; the `relayed.AgentContainer` of its agent."""

    name: str
    node: str
    network: str
    loss: NodeLoss | None = None
    """The reason why it ended or does not answer; None if unknown."""

    def exec_argv(self, python: str) -> list[str]:
        """Return the transport: the command that starts a relay in the container."""
        daemon = endpoint()
        context = ["--context", daemon.value] if daemon.variable == "DOCKER_CONTEXT" else []
        starter = (python, "-I", "-S", "-c", relayed.STARTER)
        return ["docker", *context, "exec", "-i", self.name, *starter]

    async def has_ended(self, stderr: str) -> bool:
        """Return whether the stderr of a failed dial shows that it has ended."""
        if _ENDED.search(stderr):
            await self.explain()
            return True
        self.loss = _paused(self.name) if _PAUSED.search(stderr) else None
        return False

    async def explain(self) -> None:
        """Update `loss`; it stays as it is if docker does not answer."""
        self.loss = await self._find_loss() or self.loss

    async def _find_loss(self) -> NodeLoss | None:
        """Return why it ended or does not answer; None if nothing is wrong with it."""
        try:
            inspected = await ask(
                *("inspect", "--type", "container", "--format", _STATE, self.name),
                patience_s=_ANSWER_S,
            )
            if not inspected.is_ok:
                if "No such" not in inspected.stderr:
                    return NodeLoss(f"docker says: {inspected.stderr}")
                removed = f"its container {self.name} has been removed"
                return NodeLoss(removed, LossNature.INFRASTRUCTURE)
            state = foreign_json.parse_json_object(inspected.out)
            if not state.get("Running"):
                return describe_end(self.name, state, await self._last_line())
            if state.get("Paused"):
                return _paused(self.name)
            return NodeLoss(_taken_off_network(self)) if await self._is_off_network() else None
        except (SetupError, ValueError):
            return None

    async def end(self) -> bool:
        """Remove it, running or not; return whether it is certainly gone."""
        try:
            answer = await ask("rm", "-f", "-v", self.name, patience_s=_REMOVE_S)
        except SetupError:
            return False
        return answer.is_ok or "No such container" in answer.stderr

    async def copy(self, folder: PurePath, into: Path) -> None:
        """Copy a folder, if it exists, into the folder `into`. Raises SetupError."""
        done = await ask("cp", f"{self.name}:{folder}/.", str(into), patience_s=_COPY_S)
        if not done.is_ok and not _NO_FILE.search(done.stderr):
            raise DockerError(f"the files of {self.name} cannot be copied", done.stderr)

    async def repair(self) -> str:
        """Reconnect it to the run's network if it was taken off; return a sentence about that."""
        with contextlib.suppress(SetupError, ValueError):
            if await self._is_off_network():
                done = await ask(
                    *("network", "connect", "--alias", self.node, self.network, self.name)
                )
                became = "it is connected again" if done.is_ok else done.stderr
                return f"{_taken_off_network(self)}: {became}"
        return ""

    async def _is_off_network(self) -> bool:
        networks = "{{json .NetworkSettings.Networks}}"
        inspected = await ask("inspect", "--format", networks, self.name, patience_s=_ANSWER_S)
        joined = foreign_json.parse_json(inspected.out) if inspected.is_ok else None
        return inspected.is_ok and not (isinstance(joined, dict) and self.network in joined)

    async def _last_line(self) -> str:
        logs = await ask("logs", "--tail", _LOG_LINES, self.name, patience_s=_ANSWER_S)
        lines = f"{logs.out}\n{logs.stderr}".strip().splitlines()
        return lines[-1] if lines else ""


def describe_end(name: str, state: dict[str, Any], last_line: str) -> NodeLoss:
    """Return how a container ended; `state` as `docker inspect` shows it."""
    code, reason = state.get("ExitCode"), f"its container {name}"
    if state.get("OOMKilled") and code == _KILLED:
        reason += " was killed: it took more memory than resources.memory allows"
        return NodeLoss(reason, LossNature.OUT_OF_MEMORY)
    if code == _KILLED:
        reason += " was killed (docker kill, docker stop, a daemon that ended)"
        return NodeLoss(reason, LossNature.INFRASTRUCTURE)
    cause = state.get("Error") or last_line
    reason += f" ended with exit code {code}" + (f": {cause}" if cause else "")
    return NodeLoss(reason, LossNature.OWN_FAILURE)


def as_user(user: str) -> tuple[str, ...]:
    """Return options that run tasks as `user`; docker knows the home of a name, and of root."""
    number = user.partition(":")[0]
    is_stranger = number.isdecimal() and int(number) != 0
    return ("--user", user, *(HOME if is_stranger else ()))


def run_argv(
    node: NodePlan, container: RunningContainer, run_id: str, user: tuple[str, ...]
) -> list[str]:
    """Return the arguments with which `docker` starts the container of `node`."""
    assert node.container is not None
    return [
        *("run", "--detach", "--init", "--pull", "never"),
        *("--name", container.name, "--hostname", node.name),
        *("--network", container.network, "--network-alias", node.name),
        *("--security-opt", "no-new-privileges", "--pids-limit", PROCESSES),
        *labels(run_id),
        *("--label", f"tfcluster.node={node.name}"),
        *_limits(node.container),
        *_mounts(node.container),
        *user,
        *("--entrypoint", node.python, node.container.image),
        *("-I", "-S", "-c", Path(container_wait.__file__).read_text(encoding="utf-8")),
        relayed.container_socket_name(run_id, node.name),
    ]


def _taken_off_network(container: RunningContainer) -> str:
    return f"the container {container.name} was taken off the network {container.network}"


def _paused(name: str) -> NodeLoss:
    reason = f"its container {name} is paused; `docker unpause {name}` resumes it"
    return NodeLoss(reason, LossNature.INFRASTRUCTURE)


def _limits(container: Container) -> Iterator[str]:
    if container.cpus is not None:
        yield from ("--cpus", str(container.cpus))
    if container.cores is not None:
        yield from ("--cpuset-cpus", ",".join(map(str, container.cores)))
    if container.memory is not None:  # and no swap in addition: paging would look like a hang
        yield from ("--memory", container.memory, "--memory-swap", container.memory)
    if container.gpus:
        indexes = container.gpus if container.gpus != "all" else ()
        yield from ("--gpus", f'"device={",".join(map(str, indexes))}"' if indexes else "all")
        yield from ("--shm-size", SHM)


def _mounts(container: Container) -> Iterator[str]:
    for path, options in ((container.data_dir, ["readonly"]), (container.shared_dir, [])):
        if path is not None:
            row = io.StringIO()  # docker parses the option as a line of CSV
            fields = ["type=bind", f"source={path}", f"target={path}", *options]
            csv.writer(row, lineterminator="").writerow(fields)
            yield from ("--mount", row.getvalue())
