"""Nodes that are folders of this machine: a fake `ssh` runs every command here.

All parts of tfcluster are real: the ssh backend, the bootstrap and its bundle, the relay, the
agents. Only sshd is missing: its cost on one machine would hide that of tfcluster. Each node has
its own home and temp folder, so the nodes share only the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SSH = """\
#!/bin/sh
# A fake: all options are dropped, and the command runs here, with a folder of the host as HOME.
while [ "$1" != -- ]; do shift; done
HOME={folder}/$2 TMPDIR={folder}/$2/tmp
unset XDG_RUNTIME_DIR XDG_CACHE_HOME XDG_STATE_HOME TFCLUSTER_HOME
export HOME TMPDIR
cd "$HOME" && exec sh -c "$3"
"""


@dataclass(frozen=True, slots=True)
class StandIns:
    """The nodes of the fake `ssh`."""

    addresses: Sequence[str]
    folder: Path
    """A folder with one folder per host: its home."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment whose `ssh` is the fake."""
        return os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}


def stand_ins(count: int, folder: Path) -> StandIns:
    """Return nodes 127.0.2.1, 127.0.2.2, …, each with a home below `folder`."""
    hosts = StandIns([f"127.0.2.{number}" for number in range(1, count + 1)], folder)
    for address in hosts.addresses:
        (folder / address / "tmp").mkdir(parents=True)
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(_SSH.format(folder=folder))
    ssh.chmod(0o755)
    return hosts


def processes_with(text: str) -> list[str]:
    """Return the command lines of processes with `text` in command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                data = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
            except OSError:
                continue
            # Other tests' processes have arguments of any bytes.
            command_line, environ = (each.decode(errors="replace") for each in data)
            found += [command_line] if text in command_line + environ else []
    return found
