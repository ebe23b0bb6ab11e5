"""`down --all` does not wait for a docker daemon that never answered: it holds nothing.

A stub of the client prints what the real one prints when there is no daemon.
"""

from __future__ import annotations

import pytest

from .commandline import CommandLine

CLIENT = """#!/bin/sh
echo 'Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?' >&2
exit 1
"""


@pytest.fixture
def line(shell: CommandLine) -> CommandLine:
    client = shell.root / "bin" / "docker"
    client.parent.mkdir()
    client.write_text(CLIENT)
    client.chmod(0o755)
    shell.env |= {"PATH": f"{client.parent}:{shell.env['PATH']}", "DOCKER_HOST": "unix:///x"}
    shell.script("job.py", "")
    return shell


def test_down_and_ps_ignore_a_daemon_that_never_answered(line: CommandLine) -> None:
    spec = line.spec("s.json", {"script": "job.py"}, runtime={"backend": "docker"})
    done = line.run("up", spec.name)
    assert done.code == 3
    assert "Cannot connect to the Docker daemon" in done.err
    for command in (["down", "--all"], ["ps"], ["doctor", spec.name], ["down", "--all"], ["ps"]):
        done = line.run(*command)
        assert done.code == (3 if command[0] == "doctor" else 0), done.err
        assert command[0] == "doctor" or "docker" not in done.err
