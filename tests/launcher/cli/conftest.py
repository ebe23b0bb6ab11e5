"""A fixture that runs command lines as forks, in an environment and a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked import ForkServer, outer_environment, read_at_start

Forked = Callable[..., subprocess.CompletedProcess[str]]


def environ(folder: Path) -> dict[str, str]:
    """Return the environment of a user whose home of runs and cache are in `folder`."""
    names = ("PATH", "HOME", "TFCLUSTER_CONFIG")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | {
        **read_at_start(outer_environment()),
        "TFCLUSTER_HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_RUNTIME_DIR": str(folder),
        "VIRTUAL_ENV": sys.prefix,
        "KEY": "s3cret",
        "TF_CONFIG": "{}",
    }


@pytest.fixture
def forked(tmp_path: Path, fork_server: ForkServer) -> Forked:
    """Return a function that runs a command line in the test's folder, with `more` variables."""

    def run(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        pipe, env = subprocess.PIPE, environ(tmp_path) | more
        command = fork_server.start(args, cwd=tmp_path, env=env, stdout=pipe, stderr=pipe)
        out, err = command.communicate(timeout=200)
        return subprocess.CompletedProcess(args, command.returncode, out.decode(), err.decode())

    return run
