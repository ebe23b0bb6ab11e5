"""A docker daemon that never answered holds nothing: `down --all` must not wait for it for ever.

A stand-in for the client says what the real one says of a daemon that is not there.
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


def test_after_a_daemon_that_never_answered_nothing_is_left_to_end(line: CommandLine) -> None:
    spec = line.spec("s.json", {"script": "job.py"}, runtime={"backend": "docker"})
    done = line.run("up", spec.name)
    assert done.code == 3
    assert "Cannot connect to the Docker daemon" in done.err
    for command in (["down", "--all"], ["ps"], ["doctor", spec.name], ["down", "--all"], ["ps"]):
        done = line.run(*command)
        assert done.code == (3 if command[0] == "doctor" else 0), done.err
        assert command[0] == "doctor" or "docker" not in done.err
