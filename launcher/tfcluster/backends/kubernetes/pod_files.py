"""The checkpoints in a pod whose agent or coordinator is gone, read through the pod's seat."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Final

from tfcluster.backends.kubernetes import port_forward
from tfcluster.backends.kubernetes.extraction import extract
from tfcluster.backends.kubernetes.kube_client import Cluster
from tfcluster.checkpoints.completeness import Entry

ATTEMPTS: Final = ".attempts"
"""The folder of what `receive` unpacks that has an empty file for each attempt: ``attempt-2``."""
_COPY_S: Final = 900.0
_SEND: Final = """
import json, os, signal, sys, tarfile, time
run, logs, saved = sys.argv[1], *map(os.path.expanduser, sys.argv[2:])
have = {path: tuple(about) for path, about in json.load(sys.stdin).items()}
mark = b"TFCLUSTER_RUN_ID=" + os.fsencode(run)
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open("/proc/" + pid + "/environ", "rb") as file:
            if mark in file.read().split(b"\\0") and int(pid) != os.getpid():
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
def listed():
    found = {}
    for where, _, names in os.walk(saved):
        for name in names:
            path = os.path.join(where, name)
            try:
                about = os.lstat(path)
            except OSError:
                continue
            found[path] = about.st_size, about.st_mtime_ns
    return found
before = listed()
time.sleep(1)
tar = tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT)
for name in os.listdir(logs) if os.path.isdir(logs) else []:
    tar.addfile(tarfile.TarInfo(".attempts/" + name))
for path, about in listed().items():
    name = os.path.relpath(path, saved)
    if before.get(path) == about != have.get(name):
        try:
            tar.add(path, name, recursive=False)
        except FileNotFoundError:
            pass
tar.close()
"""
"""The program for the pod: ends the run's tasks, then sends the files that nobody is writing."""


def sender_argv(run_id: str, folder: str, saved: str) -> list[str]:
    """Return what a pod runs to end the run's tasks there and to send the files in `saved`.

    `folder` is the run's folder in the pod. Its coordinator or agent is gone.
    """
    return ["python", "-I", "-S", "-c", _SEND, run_id, f"{folder}/logs", saved]


async def receive(command: Sequence[str], folder: Path, *, have: Iterable[Entry] = ()) -> bool:
    """Unpack what `command` sends into `folder`; return whether all arrived, and nothing else.

    `have`: files that are not needed. Cancelling it ends the command.
    """
    known = {entry.path: (entry.size, entry.mtime_ns) for entry in have}
    with tempfile.TemporaryFile(dir=folder) as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C must reach the coordinator only
        )
        try:
            async with asyncio.timeout(_COPY_S):
                await process.communicate(json.dumps(known).encode())
        except TimeoutError:
            return False
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode == 0 and await asyncio.to_thread(_unpack, file, folder)


def fetch(cluster: Cluster, pod: str, token: bytes, argv: Sequence[str], folder: Path) -> bool:
    """Unpack what `argv` sends from a pod, through the API server; see `receive`.

    Raises ConnectionError.
    """
    with (
        tempfile.TemporaryFile(dir=folder) as file,
        port_forward.start(cluster, pod, token, argv, timeout_s=_COPY_S) as process,
    ):
        for data in (b"{}", b""):  # nothing is here yet; the end of stdin
            process.send(data)
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
