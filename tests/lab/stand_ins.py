"""Nodes that are folders of this machine: an `ssh` that logs in nowhere stands in for the real one.

Everything of ours is real: the ssh backend, the bootstrap and its bundle, the relay, the agents.
What is missing is sshd, whose cost on one machine would be that of another project. Each node has
a home and a temp folder of its own, so nothing but the machine is shared.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SSH = """\
#!/bin/sh
# A stand-in: all options are dropped, and the command runs here, at home in a folder of the host.
while [ "$1" != -- ]; do shift; done
HOME={folder}/$2 TMPDIR={folder}/$2/tmp
unset XDG_RUNTIME_DIR XDG_CACHE_HOME XDG_STATE_HOME TFCLUSTER_HOME
export HOME TMPDIR
cd "$HOME" && exec sh -c "$3"
"""


@dataclass(frozen=True, slots=True)
class StandIns:
    """Addresses that the stand-in knows."""

    addresses: Sequence[str]
    folder: Path
    """One folder a host in it: its home."""

    @property
    def environ(self) -> Mapping[str, str]:
        """With it `ssh` is the stand-in."""
        return os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}


def stand_ins(count: int, folder: Path) -> StandIns:
    """127.0.2.1, 127.0.2.2, …, each at home in a folder below `folder`."""
    hosts = StandIns([f"127.0.2.{number}" for number in range(1, count + 1)], folder)
    for address in hosts.addresses:
        (folder / address / "tmp").mkdir(parents=True)
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(_SSH.format(folder=folder))
    ssh.chmod(0o755)
    return hosts


def processes_with(text: str) -> list[str]:
    """Command lines of those that have `text` there or in their environment: a home."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                environ = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            found += [words] if text in words + environ else []
    return found
