"""Starts `tfcluster` as a user without any rights, even if the tests run as root."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.forked import COMMAND

from .commandline import CommandLine, Done

ROOT = Path(__file__).parents[2]
OTHER_USER = 12345
"""A user id that owns nothing here."""


def as_ordinary_user(shell: CommandLine, *args: str) -> Done:
    """Run `tfcluster ARGS` as a user without any rights, in folders of that user."""
    command = [COMMAND, *args]
    if os.geteuid() == 0:
        for path in (shell.root, *shell.root.rglob("*")):
            os.chown(path, OTHER_USER, OTHER_USER)
        drop = f"setpriv --reuid={OTHER_USER} --regid={OTHER_USER} --clear-groups --no-new-privs"
        script = f"{open_up(shell.root)}\nexec {drop} {shlex.join(command)}"
        command = ["unshare", "--mount", "sh", "-ec", script]
    env = shell.env | {"HOME": str(shell.root), "XDG_CACHE_HOME": str(shell.root / "cache")}
    process = subprocess.Popen(
        command, env=env, cwd=shell.cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    shell.started.append(process)
    out, err = process.communicate(timeout=200)
    return Done(process.returncode, out, err.decode())


def open_up(folder: Path) -> str:
    """Return shell lines that let every user reach Python and this checkout.

    They are for a mount namespace of their own. A closed folder such as /root, in which Python or
    the checkout lies, is covered except for these.
    """
    needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)}
    closed = {
        ancestor: path
        for path in needed
        for ancestor in path.parents
        if not ancestor.stat().st_mode & 0o001
    }
    lines = []
    for ancestor, path in closed.items():
        kept = folder / "kept"
        lines += [f"mkdir {kept}", f"mount --bind {path} {kept}"]
        lines += [f"mount -t tmpfs -o mode=755 none {ancestor}", f"mkdir -p {path}"]
        lines += [f"mount --move {kept} {path}", f"rmdir {kept}"]
    return "\n".join(lines)
