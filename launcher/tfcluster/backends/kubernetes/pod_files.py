"""The checkpoints in a pod that an ended run has left, read through the pod's seat."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from tfcluster.backends.kubernetes import port_forward
from tfcluster.backends.kubernetes.extraction import extract
from tfcluster.backends.kubernetes.kube_client import Cluster

_COPY_S: Final = 900.0
_SEND: Final = """
import os, signal, sys, tarfile
mark, saved = b"TFCLUSTER_RUN_ID=" + os.fsencode(sys.argv[1]), os.path.expanduser(sys.argv[2])
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open("/proc/" + pid + "/environ", "rb") as file:
            if mark in file.read().split(b"\\0") and int(pid) != os.getpid():
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
    if os.path.isdir(saved):
        tar.add(saved, ".")
"""
"""The program for the pod: ends the run's tasks, then sends what they have saved."""


def sender_argv(run_id: str, saved: str) -> list[str]:
    """Return what a pod runs to end the tasks of the run there and to send the files in `saved`."""
    return ["python", "-I", "-S", "-c", _SEND, run_id, saved]


def fetch(cluster: Cluster, pod: str, token: bytes, argv: Sequence[str], folder: Path) -> bool:
    """Unpack what `argv` sends from a pod into `folder`; return whether all arrived, and no more.

    Raises ConnectionError.
    """
    with (
        tempfile.TemporaryFile(dir=folder) as file,
        port_forward.start(cluster, pod, token, argv, timeout_s=_COPY_S) as process,
    ):
        shutil.copyfileobj(process, file)
        return process.code == 0 and _unpack(file, folder)


def _unpack(file: IO[bytes], folder: Path) -> bool:
    file.seek(0)
    try:
        with tarfile.open(fileobj=file) as tar:
            extract(tar, folder, "data")
    except tarfile.TarError:
        return False
    return True
