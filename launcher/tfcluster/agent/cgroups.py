"""Where the kernel keeps a process's control groups, v1 and v2: folders of limits and counters."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def folders(
    pid: int | str, controller: str, files: Sequence[str], proc: str = "/proc"
) -> Iterator[str]:
    """Those of `controller` that hold one of `files`: the process's own first, up to the one
    mounted here."""
    try:
        with open(f"{proc}/self/mountinfo") as file:
            mounts = [mount for line in file if (mount := _mount(line, controller)) is not None]
        with open(f"{proc}/{pid}/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for hierarchy, controllers, path in lines:
        kind = "cgroup2" if hierarchy == "0" else "cgroup"
        if kind == "cgroup" and controller not in controllers.split(","):
            continue
        for mount_kind, root, point in mounts:
            if mount_kind == kind:
                yield from _upwards(point, _below(path, root), files)


def _mount(line: str, controller: str) -> tuple[str, str, str] | None:
    """Kind, root and mount point of a line of mountinfo (proc(5)), where it is `controller`'s."""
    left, _, right = line.partition(" - ")
    fields, about = left.split(), right.split()
    kind = about[0] if about else ""
    is_its = kind == "cgroup2" or (kind == "cgroup" and controller in about[-1].split(","))
    return (kind, fields[3], fields[4]) if is_its else None


def _below(path: str, root: str) -> str:
    """In a container /proc may name the cgroup from the host's root, the mount only ours."""
    root = root.rstrip("/")
    return path[len(root) :] if path.startswith(root + "/") or path == root else path


def _upwards(mount: str, path: str, files: Sequence[str]) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    for length in range(len(parts), -1, -1):
        folder = "/".join((mount, *parts[:length]))
        if any(os.path.exists(f"{folder}/{name}") for name in files):
            yield folder
