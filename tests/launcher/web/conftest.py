"""Fixtures: the site of a home, a browser's client that has logged in, and logs made by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tfcluster.plans.plan import TaskId
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.web.app import WebPages
from tfcluster.web.security import Guard, Keys

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # starlette 1 asks for httpx2, which few have
    from starlette.testclient import TestClient as TestClient

PORT = 6020
HOST = f"127.0.0.1:{PORT}"
Write = Callable[..., Path]
Open = Callable[..., TestClient]


def change(paths: RunPaths, edit: Callable[[RunSnapshot], None]) -> None:
    """Change the state of a run as its coordinator does."""
    state = registry.load(paths)
    edit(state)
    run_writer.write_json(paths.state, state.to_json())


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def open_client(home_dir: Path, keys: Keys) -> Iterator[Open]:
    """Return a function that opens a client; by default it has logged in."""
    opened: list[TestClient] = []

    def open_one(
        *, read_only: bool = False, has_cookie: bool = True, metrics: str | None = None
    ) -> TestClient:
        site = WebPages(home_dir, csrf=keys.csrf, read_only=read_only)
        app = Guard(site.app(), replace(keys, metrics=metrics), port=PORT, read_only=read_only)
        client = TestClient(app, base_url=f"http://{HOST}")
        if has_cookie:
            client.cookies.set(f"tfcluster-{PORT}", keys.session)
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def client(open_client: Open) -> TestClient:
    return open_client()


@pytest.fixture
def write_log() -> Write:
    """Return a function that appends bytes to the log of a task of a run."""

    def write(paths: RunPaths, task: str, content: bytes, *, attempt: int = 1) -> Path:
        path = paths.task_log(TaskId.parse(task), attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)
        return path

    return write
