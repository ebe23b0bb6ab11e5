"""A child that the coordinator's process forks holds no end of what agents and sweeper wait on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from tfcluster.agent.agent_config import NodeOrder
from tfcluster.backends import bundle, relayed
from tfcluster.backends.docker.leftovers import Sweeper
from tfcluster.rundir import control


def connections() -> set[str]:
    """Return the sockets of this process, and the pipes it writes to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = f"/proc/self/fd/{name}"
            target, is_written = os.readlink(path), os.lstat(path).st_mode & stat.S_IWUSR
            if target.startswith(("socket:", "pipe:")) and is_written:
                found.add(target)
    return found


def connections_of_child() -> set[str]:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, json.dumps([*connections()]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = set(json.load(answer))
    os.waitpid(child, 0)
    return found


@contextlib.asynccontextmanager
async def transport(folder: Path) -> AsyncIterator[None]:
    opened = relayed.Transport(["sleep", "60"], NodeOrder(), bundle.build())
    dialling = asyncio.create_task(opened.dial())
    while opened._listener is None:  # noqa: ASYNC110 (it sends no event)
        await asyncio.sleep(0.01)
    yield
    dialling.cancel()
    await asyncio.wait([dialling])


@contextlib.asynccontextmanager
async def sweeper(folder: Path) -> AsyncIterator[None]:
    opened = await Sweeper.start("run")
    yield
    await opened.dismiss()


@contextlib.asynccontextmanager
async def control_socket(folder: Path) -> AsyncIterator[None]:
    async with control.serve(folder / "private" / "socket", Mock()):
        yield


@pytest.mark.linux("/proc/self/fd")
@pytest.mark.parametrize("hold", [transport, sweeper, control_socket])
def test_a_forked_child_closes_its_copies(
    hold: Callable[[Path], contextlib.AbstractAsyncContextManager[None]], tmp_path: Path
) -> None:
    async def scenario() -> tuple[set[str], set[str]]:
        before = connections()
        async with hold(tmp_path):
            return connections() - before, connections_of_child()

    opened, inherited = asyncio.run(scenario())
    assert opened
    assert not opened & inherited
