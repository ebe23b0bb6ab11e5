"""Finds out which hosts see the workdir itself: they need no copy of it, and work in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcluster.backends.far_files import FarFiles
from tfcluster.plan import remote
from tfcluster.plan.plan import NodePlan, Plan
from tfcluster.run.code import MARK
from tfcluster.run.exchange import Exchange


async def find(plan: Plan, exchange: Exchange, nodes: Iterable[NodePlan]) -> None:
    """Have those of `nodes` that see the workdir work in it; maybe it is where the spec says."""
    far = [node for node in nodes if exchange.site(node.name).is_remote]
    if not far:
        return
    with marked(Path(plan.workdir)) as mark:
        if mark is not None:
            await asyncio.gather(*(_look(exchange, node, mark) for node in far))


async def _look(exchange: Exchange, node: NodePlan, mark: Mark) -> None:
    named = remote.chosen_folder(node.workdir)
    with contextlib.suppress(OSError):  # a lost node will be told of
        found = await mark.seen_by(exchange.files(node.name), [named] if named else [])
        if found is not None:
            exchange.share_code(node, found)


@dataclass(frozen=True, slots=True)
class Mark:
    """A file in a folder of this machine that nobody else could have made."""

    folder: str
    name: str
    text: str
    inode: int

    async def seen_by(self, node: FarFiles, elsewhere: Sequence[str] = ()) -> str | None:
        """Under which name the node sees the folder: its own, or one of `elsewhere`.

        None: it does not, or may not write there. Names and times can be equal on two machines
        that were installed from one image; a text that was just thrown cannot. Raises
        FarFilesError.
        """
        folders = [self.folder, *elsewhere]
        return await node.look(folders, name=self.name, text=self.text, inode=self.inode)


@contextlib.contextmanager
def marked(folder: Path) -> Iterator[Mark | None]:
    """Put a mark into `folder` for as long as it is looked for; None where it takes none."""
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
