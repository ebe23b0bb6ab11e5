"""The cluster that all test processes of one pytest share: a process apart, which ends with it.

To try tests again and again on one cluster, start it by hand and name what it said:
`python -m tests.integration.kubernetes up > lab.json`, `KUBERNETES_LAB=lab.json pytest ...`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.lab.docker_images import cache, exclusive

ROOT = Path(__file__).parents[3]
END_S = 60.0


def shared_cluster() -> dict[str, Any]:
    """Return what the cluster's process says of itself; the first test process starts it."""
    if by_hand := os.environ.get("KUBERNETES_LAB"):
        return dict(json.loads(Path(by_hand).read_text()))
    owner = _owner()
    about = _file(owner, "json")
    with exclusive(about.stem):
        if not about.exists() or not _lives(json.loads(about.read_text())["pid"]):
            _forget_dead_owners()
            about.write_text(_start(owner))
    return dict(json.loads(about.read_text()))


def end_shared_cluster() -> None:
    """End the cluster of this pytest and wait for its end."""
    about = _file(os.getpid(), "json")
    if about.exists():
        pid = json.loads(about.read_text())["pid"]
        with contextlib.suppress(ProcessLookupError):
            if _lives(pid):
                ended = os.pidfd_open(pid)
                signal.pidfd_send_signal(ended, signal.SIGTERM)
                select.select([ended], [], [], END_S)
                os.close(ended)
        _forget(os.getpid())


def _owner() -> int:
    """Return the pytest process that the user started: the parent of xdist's processes."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def _file(owner: int, kind: str) -> Path:
    return cache() / f"kubernetes-of-{owner}.{kind}"


def _start(owner: int) -> str:
    argv = [sys.executable, "-m", "tests.integration.kubernetes", "up", "--owner", str(owner)]
    with _file(owner, "log").open("w") as errors:
        process = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.readline()
    process.returncode = 0  # it outlives this test process
    if not said:
        raise RuntimeError(_file(owner, "log").read_text())
    return said


def _lives(pid: int) -> bool:
    try:
        return b"tests.integration.kubernetes" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _forget_dead_owners() -> None:
    """Remove the files of test processes that were killed; their clusters ended by themselves."""
    for path in cache().glob("kubernetes-of-*.log"):
        owner = int(path.stem.rpartition("-")[2])
        if not Path(f"/proc/{owner}").exists():
            _forget(owner)


def _forget(owner: int) -> None:
    for kind in ("json", "log", "lock"):
        _file(owner, kind).unlink(missing_ok=True)
