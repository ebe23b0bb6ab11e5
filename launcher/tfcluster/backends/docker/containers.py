"""One container: how it is started, how its agent is reached, how it is told that it has ended."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfcluster.agent import container_wait, foreign_json
from tfcluster.backends import relayed
from tfcluster.backends.docker.client import ask, endpoint
from tfcluster.backends.docker.leftovers import labels
from tfcluster.errors import SurroundingsError
from tfcluster.plan.plan import Container, NodePlan

_REMOVE_S = 30.0
_TELL_S = 10.0
_SHM = "1g"
"""At most: docker's own 64 MB are too few for NCCL (its documentation, "Shared memory")."""
_PROCESSES = "16384"
"""And threads, of which TensorFlow starts several for each core. A job that starts processes
without end does not take all that the machine has."""
HOME = ("--env", "HOME=/tmp")
"""That of the image may be another user's."""
NOBODY = "65534:65534"
_LOG_LINES = "20"
_ENDED = re.compile(
    r"^Error(?: response from daemon)?: .*(?:is not running|No such container|is restarting)",
    re.IGNORECASE | re.MULTILINE,
)
"""What docker itself says; what runs in the container may use the same words."""
_PAUSED = re.compile(r"is paused", re.IGNORECASE)
_KILLED = 137
"""128 + SIGKILL, of a container's first process."""


@dataclass(slots=True)
class RunningContainer:
    """A container by name; `relayed.Place` of its agent."""

    name: str
    node: str
    network: str
    explanation: str = ""
    """What is known of its end, or of why it does not answer."""

    def exec_argv(self, python: str) -> list[str]:
        """The transport."""
        there = endpoint()
        daemon = ["--context", there.value] if there.variable == "DOCKER_CONTEXT" else []
        starter = (python, "-I", "-S", "-c", relayed.STARTER)
        return ["docker", *daemon, "exec", "-i", self.name, *starter]

    async def has_ended(self, said: str) -> bool:
        """Whether it will never answer again, as docker's words for a dial that failed show."""
        if _ENDED.search(said):
            await self.explain()
            return True
        self.explanation = ""
        if _PAUSED.search(said):
            self.explanation = _paused(self.name)
        return False

    async def explain(self) -> None:
        """Keeps what it finds out as its story, and what is known where docker does not answer."""
        self.explanation = await self._tell() or self.explanation

    async def _tell(self) -> str:
        """How it ended, or what keeps it from answering; empty where nothing is wrong with it."""
        try:
            found = await ask(
                *("inspect", "--type", "container", "--format", _STATE, self.name),
                patience_s=_TELL_S,
            )
            if not found.is_good:
                gone = f"its container {self.name} has been removed"
                return gone if "No such" in found.said else f"docker says: {found.said}"
            state = foreign_json.parse_json_object(found.out)
            if not state.get("Running"):
                return tell(self.name, state, await self._last_line())
            if state.get("Paused"):
                return _paused(self.name)
            return _off(self) if await self._is_cut_off() else ""
        except (SurroundingsError, ValueError):
            return ""

    async def end(self) -> bool:
        """Remove it, whatever it does; whether it is certain that it is no more."""
        try:
            answer = await ask("rm", "-f", "-v", self.name, patience_s=_REMOVE_S)
        except SurroundingsError:
            return False
        return answer.is_good or "No such container" in answer.said

    async def repair(self) -> str:
        """Back on the run's network, where somebody has taken it off: what is to be told then."""
        with contextlib.suppress(SurroundingsError, ValueError):
            if await self._is_cut_off():
                done = await ask(
                    *("network", "connect", "--alias", self.node, self.network, self.name)
                )
                became = "it is connected again" if done.is_good else done.said
                return f"{_off(self)}: {became}"
        return ""

    async def _is_cut_off(self) -> bool:
        networks = "{{json .NetworkSettings.Networks}}"
        found = await ask("inspect", "--format", networks, self.name, patience_s=_TELL_S)
        joined = foreign_json.parse_json(found.out) if found.is_good else None
        return found.is_good and not (isinstance(joined, dict) and self.network in joined)

    async def _last_line(self) -> str:
        found = await ask("logs", "--tail", _LOG_LINES, self.name, patience_s=_TELL_S)
        lines = f"{found.out}\n{found.said}".strip().splitlines()
        return lines[-1] if lines else ""


_STATE = "{{json .State}}"


def tell(name: str, state: dict[str, Any], last_line: str) -> str:
    """The end of a container in a sentence; `state` as `docker inspect` has it."""
    code = state.get("ExitCode")
    if state.get("OOMKilled") and code == _KILLED:
        return f"its container {name} was killed: it took more memory than resources.memory allows"
    if code == _KILLED:
        return f"its container {name} was killed (docker kill, docker stop, a daemon that ended)"
    why = state.get("Error") or last_line
    return f"its container {name} ended with exit code {code}" + (f": {why}" if why else "")


def _off(container: RunningContainer) -> str:
    return f"the container {container.name} was taken off the network {container.network}"


def _paused(name: str) -> str:
    return f"its container {name} is paused; `docker unpause {name}` lets it go on"


def as_user(user: str) -> tuple[str, ...]:
    """Options that make tasks `user`; docker knows the home of a name, and of root."""
    number = user.partition(":")[0]
    is_stranger = number.isdecimal() and int(number) != 0
    return ("--user", user, *(HOME if is_stranger else ()))


def run_argv(
    node: NodePlan, container: RunningContainer, run_id: str, user: tuple[str, ...]
) -> list[str]:
    """What `docker` is told, to start the container of `node`."""
    assert node.container is not None
    python = node.interpreter.path if node.interpreter is not None else "python3"
    return [
        *("run", "--detach", "--init", "--pull", "never"),
        *("--name", container.name, "--hostname", node.name),
        *("--network", container.network, "--network-alias", node.name),
        *("--security-opt", "no-new-privileges", "--pids-limit", _PROCESSES),
        *labels(run_id),
        *("--label", f"tfcluster.node={node.name}"),
        *_limits(node.container),
        *_mounts(node.container),
        *user,
        *("--entrypoint", python, node.container.image),
        *("-I", "-S", "-c", Path(container_wait.__file__).read_text(encoding="utf-8")),
        relayed.container_socket_name(run_id, node.name),
    ]


def _limits(container: Container) -> Iterator[str]:
    if container.cpus is not None:
        yield from ("--cpus", str(container.cpus))
    if container.cores is not None:
        yield from ("--cpuset-cpus", ",".join(map(str, container.cores)))
    if container.memory is not None:  # and no swap beside it: paging would look like a hang
        yield from ("--memory", container.memory, "--memory-swap", container.memory)
    if container.gpus:
        indexes = container.gpus if container.gpus != "all" else ()
        yield from ("--gpus", f'"device={",".join(map(str, indexes))}"' if indexes else "all")
        yield from ("--shm-size", _SHM)


def _mounts(container: Container) -> Iterator[str]:
    for path, options in ((container.data_dir, ["readonly"]), (container.shared_dir, [])):
        if path is not None:
            row = io.StringIO()  # docker reads it as a line of CSV
            fields = ["type=bind", f"source={path}", f"target={path}", *options]
            csv.writer(row, lineterminator="").writerow(fields)
            yield from ("--mount", row.getvalue())
