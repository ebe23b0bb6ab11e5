"""Decides whether two tasks mean the same file, on one machine, in containers, on shared storage.

A path alone does not say that: each container and each host has its own `/data/model.keras`, unless
it is a mount that they share.
"""

from __future__ import annotations

import functools
import os
import re
from collections import namedtuple

try:
    from _blake2 import blake2b  # `hashlib` loads OpenSSL, which takes 7 ms in each task
except ImportError:
    from hashlib import blake2b

_NETWORK = frozenset((
    *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "wekafs"),
    *("fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.sshfs"),
))  # fmt: skip
"""File systems that hold the same files on every machine that mounts them from the same source.

The source must say which one it is: that of `fuse.s3fs` is `s3fs` for every bucket.
"""
_MOUNTS = "/proc/self/mountinfo"
_OCTAL = re.compile(rb"\\([0-7]{3})")


Mount = namedtuple("Mount", ("point", "root", "device", "kind", "source"))  # typing is not loaded
"""One line of /proc/self/mountinfo (proc(5)): the folder `root` of its file system is mounted at
`point`."""


def identity(path: str) -> str:
    """Return a string that two tasks get for the same file, and for no two different files."""
    path = path[len("file://") :] if path.startswith("file://") else path
    if is_url(path):
        return path
    real = os.path.realpath(path)
    mount = _mount_of(real)
    if mount is None:
        return f"{_machine()}:{real}"
    inside = os.path.join(mount.root, os.path.relpath(real, mount.point))
    place = mount.source if mount.kind in _NETWORK else f"{_machine()} {mount.device}"
    return f"{place}:{os.path.normpath(inside)}"


def digest(path: str) -> str:
    """Return a short form of `identity`."""
    return blake2b(os.fsencode(identity(path)), digest_size=12).hexdigest()


def is_url(path: str) -> bool:
    """Return whether `path` is one of an object store, such as ``gs://bucket/model``."""
    return "://" in path


def looks_own(path: str) -> bool:
    """Return whether the names in `path` say that no other task saves there.

    These are temporary folders, and folders with this task's name: `workertemp_1`, `tmp8x2k1q_a`,
    `…/tasks/worker-1/checkpoints`, `worker_1`. Names that are part of the working directory, such
    as that of a user `worker1`, do not count.
    """
    if path and not is_url(path):
        path = os.path.relpath(path)
    job, _, index = os.environ.get("TFCLUSTER_TASK", "worker:?").partition(":")
    own = re.compile(rf"workertemp.*|tmp\w{{8}}|(.*[^a-z])?{re.escape(job)}[-_:.]?{index}(\D.*)?")
    return any(own.fullmatch(name) for name in path.split("/"))


def _mount_of(path: str) -> Mount | None:
    """Return the mount that `path`, without links, is on; None if unknown, as on macOS."""
    best = None
    for mount in _mounts():
        is_on = path == mount.point or path.startswith(os.path.join(mount.point, ""))
        # A later mount at the same point covers an earlier one.
        if is_on and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


@functools.lru_cache(maxsize=1)
def _mounts() -> tuple[Mount, ...]:
    try:
        with open(_MOUNTS, "rb") as file:
            return tuple(map(_parse, file.read().splitlines()))
    except (OSError, ValueError, IndexError):
        return ()


def _parse(line: bytes) -> Mount:
    before, _, after = line.partition(b" - ")
    fields, types = before.split(b" "), after.split(b" ")
    names = (fields[4], fields[3], fields[2], types[0], types[1])
    return Mount(*(os.fsdecode(_OCTAL.sub(_unescape, name)) for name in names))


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])


@functools.lru_cache(maxsize=1)
def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename
