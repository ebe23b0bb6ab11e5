"""Shared workdirs: the remote nodes that see this machine's workdir need no copy of it.

Apart from `code_sync`, since a submission needs no asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfcluster.nodes.code_sync import MARK
from tfcluster.nodes.hub import Hub
from tfcluster.plans import remote_paths
from tfcluster.plans.plan import NodePlan, Plan


async def find_shared_workdirs(plan: Plan, hub: Hub, nodes: Iterable[NodePlan]) -> None:
    """Find the remote `nodes` that see the workdir; their tasks will run in it, not in a copy.

    The workdir may have the same path there, or the one of the spec's ``runtime.hosts.H.workdir``.
    """
    remote = [node for node in nodes if hub.site(node.name).is_remote]
    if not remote:
        return
    with placed_mark(Path(plan.workdir)) as mark:
        if mark is not None:
            await asyncio.gather(*(_find_on_node(hub, node, mark) for node in remote))


async def _find_on_node(hub: Hub, node: NodePlan, mark: Mark) -> None:
    named = remote_paths.chosen_folder(node.workdir)
    folders = [mark.folder, named] if named else [mark.folder]
    with contextlib.suppress(OSError):  # a lost node is reported by its link
        shared = await hub.files(node.name).find_shared_folder(
            folders, name=mark.name, text=mark.text, inode=mark.inode
        )
        if shared is not None:
            hub.share_code(node, shared)


@dataclass(frozen=True, slots=True)
class Mark:
    """A file with a random content, which shows that another machine sees the same folder.

    Names and times can be equal on two machines that were installed from one image; a random text
    cannot.
    """

    folder: str
    name: str
    text: str
    inode: int


@contextlib.contextmanager
def placed_mark(folder: Path) -> Iterator[Mark | None]:
    """Put a mark into `folder` while the block runs; None if the folder is not writable."""
    text = secrets.token_hex(16)
    path = folder / f"{MARK}{text[:12]}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError:
        yield None
        return
    try:
        with open(fd, "w") as file:
            file.write(text)
            inode = os.fstat(fd).st_ino
        yield Mark(str(folder), path.name, text, inode)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
