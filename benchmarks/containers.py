"""How soon a run's containers are up, beside the same `docker run` commands typed by hand."""

from __future__ import annotations

import atexit
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import cache, partial
from pathlib import Path

from benchmarks.harness import Metric, Ratio
from benchmarks.runs import TFCLUSTER, environment
from tests.lab.docker_images import STUB, build_stub
from tests.lab.dockerd import Docker, Dockerd

COUNT = 4
_HOLD_S = "3"


@cache
def _docker() -> Docker:
    """A daemon of our own with the stub image; it ends with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(tempfile.mkdtemp(prefix="dockerd-", dir="/var/tmp"))
    docker = stack.enter_context(Dockerd(folder)).docker
    build_stub(docker)
    return docker


def _started(names: Sequence[str], began: float) -> float:
    """From `began` until the last of the containers was started, by the daemon's own clock."""
    found = json.loads(_docker()("inspect", *names))
    # Docker writes nine digits of a second, datetime reads six.
    times = [datetime.fromisoformat(one["State"]["StartedAt"][:26] + "+00:00") for one in found]
    return max(time.timestamp() for time in times) - began


def _by_hand() -> float:
    """A network, then all `docker run` at once."""
    docker, names = _docker(), [f"hand-{number}" for number in range(COUNT)]
    began = time.time()
    docker("network", "create", "hand")
    run = ["docker", "run", "--detach", "--init", "--network", "hand", "--name"]
    sleep = ["--entrypoint", "sleep", STUB, "30"]
    started = [
        subprocess.Popen([*run, name, *sleep], env=dict(docker.env), stdout=subprocess.DEVNULL)
        for name in names
    ]
    if any(one.wait() for one in started):
        raise SystemExit("docker run failed")
    seconds = _started(names, began)
    docker("rm", "--force", *names)
    docker("network", "rm", "hand")
    return seconds


def _up(until: str, *, planned: bool = False) -> float:
    """From the command's start until the last container, agent or task has started. `planned`:
    from the moment at which it had read the spec and begins."""
    with tempfile.TemporaryDirectory(prefix="tfc") as name:
        folder = Path(name)
        spec = {
            "name": "b",
            "cluster": {"worker": COUNT},
            "job": {"command": ["sleep", _HOLD_S], "kind": "plain"},
            "runtime": {"backend": "docker", "image": STUB},
        }
        (folder / "bench.json").write_text(json.dumps(spec))
        env = environment(folder / ".home") | {
            key: _docker().env[key] for key in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")
        }
        began = time.time()
        command = [TFCLUSTER, "up", "bench.json"]
        with subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as run:
            seconds = _seen(folder, until, began, planned=planned)
            _, said = run.communicate()
        if run.returncode:
            raise SystemExit(f"tfcluster up failed:\n{said.decode()[-3000:]}")
        return seconds


def _seen(folder: Path, until: str, began: float, *, planned: bool) -> float:
    kind = "task_started" if until == "container" else until
    while True:
        events = list(folder.glob(".home/runs/*/events.jsonl"))
        lines = [json.loads(x) for path in events for x in path.read_text().split("\n")[:-1]]
        times: list[float] = [line["time"] for line in lines if line["type"] == kind]
        if len(times) == COUNT:
            break
        time.sleep(0.05)
    if planned:
        began = next(line["time"] for line in lines if line["type"] == "run_started")
    if until != "container":
        return max(times) - began
    return _started([f"{events[0].parent.name}-worker-{n}" for n in range(COUNT)], began)


UP = Metric(
    title=f"{COUNT} containers: until the last has started",
    unit="s",
    variants={
        "docker run, by hand": _by_hand,
        "tfcluster, once planned": partial(_up, "container", planned=True),
        "tfcluster, from Enter": partial(_up, "container"),
        "its agents": partial(_up, "node_connected"),
        "its tasks": partial(_up, "task_started"),
    },
    ratios=[
        Ratio(f"{name} : by hand", name, "docker run, by hand")
        for name in ("tfcluster, once planned", "tfcluster, from Enter", "its agents", "its tasks")
    ],
)
