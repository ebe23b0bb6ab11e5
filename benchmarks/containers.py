"""The time until a run's containers are up, compared with `docker run` commands by hand."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import cache, partial
from pathlib import Path

from benchmarks.harness import Arm, Claim, Failed, Metric, Quantity, Taken
from benchmarks.sandbox import TFCLUSTER, Sandbox, sandbox
from tests.lab.docker_images import STUB, build_stub
from tests.lab.dockerd import Docker, Dockerd

COUNT = 4
_HOLD_S = "3"


@cache
def _docker() -> Docker:
    """Start a docker daemon that has the stub image; it ends with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(tempfile.mkdtemp(prefix="dockerd-", dir="/var/tmp"))
    # A TemporaryDirectory would be removed first, while the daemon still uses it.
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    docker = stack.enter_context(Dockerd(folder)).docker
    build_stub(docker)
    return docker


def _started(names: Sequence[str], began: float) -> float:
    """Return the seconds from `began` to the last container's start, by the daemon's clock."""
    found = json.loads(_docker()("inspect", *names))
    # Docker writes nine digits of a second; datetime reads six.
    times = [datetime.fromisoformat(one["State"]["StartedAt"][:26] + "+00:00") for one in found]
    return max(time.timestamp() for time in times) - began


def _by_hand() -> Taken:
    """Create a network, then run all `docker run` commands at once."""
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
        raise Failed("docker run failed")
    seconds = _started(names, began)
    docker("rm", "--force", *names)
    docker("network", "rm", "hand")
    return {"until": seconds}


def _up(until: str, *, planned: bool = False) -> Taken:
    """Measure from the command's start until the last container, agent or task has started.

    `planned`: measure from the event `run_started`, when the spec has been read.
    """
    with sandbox() as box:
        spec = {
            "name": "b",
            "cluster": {"worker": COUNT},
            "job": {"command": ["sleep", _HOLD_S], "kind": "plain"},
            "runtime": {"backend": "docker", "image": STUB},
        }
        (box.folder / "bench.json").write_text(json.dumps(spec))
        env = {key: _docker().env[key] for key in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")}
        began = time.time()
        run = box.start([TFCLUSTER, "up", "bench.json"], env=env)
        seconds = _seen(box, until, began, planned=planned)
        box.end(run)
        return {"until": seconds}


def _seen(box: Sandbox, until: str, began: float, *, planned: bool) -> float:
    kind = "task_started" if until == "container" else until
    box.until(lambda: len(_events(box, kind)) == COUNT, kind)
    if planned:
        (began,) = _events(box, "run_started")
    if until != "container":
        return max(_events(box, kind)) - began
    (run,) = (box.home / "runs").glob("b-*")
    return _started([f"{run.name}-worker-{n}" for n in range(COUNT)], began)


def _events(box: Sandbox, kind: str) -> list[float]:
    """Return the times of all events of that kind so far."""
    texts = [path.read_text() for path in box.home.glob("runs/*/events.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.split("\n")[:-1]]
    return [float(line["time"]) for line in lines if line["type"] == kind]


def containers(*, quick: bool) -> Metric:
    """Return the metric; it needs docker, starts a daemon of its own and uses the stub image."""
    arms = {
        "tfcluster, once planned": partial(_up, "container", planned=True),
        "tfcluster, from Enter": partial(_up, "container"),
        "its agents": partial(_up, "node_connected"),
        "its tasks": partial(_up, "task_started"),
    }
    by_hand = Arm(_by_hand, "docker network create hand; docker run --detach --init … &  … 4 times")
    return Metric(
        title=f"{COUNT} containers: until the last has started",
        quantities={"until": Quantity("s")},
        arms={
            "docker run, by hand": by_hand,
            **{name: Arm(take, "tfcluster up bench.json") for name, take in arms.items()},
        },
        claims=[
            Claim("once planned : by hand", "until", next(iter(arms)), "docker run, by hand", 1.3),
            *(Claim(f"{x} : by hand", "until", x, "docker run, by hand") for x in [*arms][1:]),
        ],
    )
