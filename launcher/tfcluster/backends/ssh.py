"""Tasks on hosts that the system's ssh can log in to without a question.

The user's own configuration, jump hosts, agents and known hosts are in force; keys of hosts are
verified as ever.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfcluster.backends import relayed
from tfcluster.backends.base import Capabilities, Tell, ignore_event
from tfcluster.errors import NodeLostError, SurroundingsError
from tfcluster.plan.plan import NodePlan
from tfcluster.wire.link import AgentLink

CONNECT_S = 8
OPTIONS = (
    "BatchMode=yes",  # nobody is there to answer
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "RequestTTY=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",  # not among "all": tasks could log in elsewhere as the user
    "RemoteCommand=none",
    "LogLevel=ERROR",
    # A shared connection that is cut would be dialled over again and again.
    "ControlMaster=no",
    "ControlPath=none",
)


class SshBackend:
    """The backend called ``ssh``."""

    capabilities = Capabilities(shares_filesystem=False, has_lease=True, holds_ports=True)
    may_hold_resources = False

    def __init__(self, runtime_dir: Path) -> None:
        self._runtime_dir = runtime_dir
        self._agents: dict[str, Mapping[str, Any] | None] = {}
        """Node → identity of the agent reached last."""

    async def connect(
        self,
        node: NodePlan,
        *,
        run_id: str,
        token: str,
        tell: Tell = ignore_event,
        lease_s: float = 60.0,
        is_fenced: bool = False,
    ) -> AgentLink:
        """Log in, and reach the run's agent there; raises SurroundingsError with ssh's words."""
        if shutil.which("ssh") is None:
            raise SurroundingsError(
                "there is no ssh client on this machine", fix="install openssh-client"
            )
        try:
            link = await relayed.connect(
                node.name,
                argv(node),
                run_id=run_id,
                token=token,
                lease_s=lease_s,
                former=self._agents.get(node.name),
                is_fenced=is_fenced,
            )
        except NodeLostError as error:
            raise NodeLostError(error.message, fix=_fix(error.message, node)) from error
        self._agents[node.name] = link.welcome.get("identity")
        return link

    async def end_run(
        self, node: NodePlan, *, run_id: str, former: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """See `EndsLostRuns`."""
        try:
            return await relayed.end_run(argv(node), run_id=run_id, former=former)
        except relayed.Unreached as error:
            fix = _fix(f"cannot be reached: {error}", node)
            raise NodeLostError(f"{node.name} cannot be reached: {error}", fix=fix) from error

    async def repair(self) -> list[str]:
        return []

    async def close(self, *, keeps_folders: bool = False) -> list[str]:
        """Nothing is made for a run as a whole."""
        return []


_FIND = 'p=$1; case $p in */*) [ -d "$p" ] && p=$p/bin/python;; esac; exec "$p" -I -S -c "$2"'
"""A folder with ``bin/python`` stands for it; within single quotes, which login shells share."""
_CURES = (
    (r"Permission denied \(", "ssh must log in without a question: ssh-copy-id {to}"),
    ("Host key verification failed", "look at its key, then accept it: ssh {to}"),
    ("Could not resolve hostname", "is the name right? see `ssh -v {to}`"),
    (
        "^ssh: connect to host",
        "is it up, and does sshd listen there? runtime.hosts.{name}.ssh names another way in",
    ),
    ("No space left on device|Disk quota exceeded", "make room in ~/.cache there"),
    (
        "belongs to another user|other users can write to it|not a folder but a link",
        "make ~/.cache/tfcluster writable there, where the name of another folder is kept",
    ),
    ("does its login hang|end the shell", "look at what runs at its login: ssh {to} true"),
    (
        r"(?:not found|No such file or directory|[Cc]annot execute.*|Permission denied)$"
        r"|^Unknown option: -I|^SyntaxError|^Python 3.9 or newer is needed",
        "runtime.hosts.{name}.python names a Python (3.9 or newer) of that host",
    ),
)
"""The first that fits, of what ssh, a shell or a Python says."""


def _fix(message: str, node: NodePlan) -> str:
    to = node.destination or node.name
    said = message.partition("cannot be reached: ")[2]
    cures = (fix for words, fix in _CURES if re.search(words, said, re.MULTILINE))
    return next(cures, "see `ssh -v {to}`").format(to=to, name=node.name)


def argv(node: NodePlan) -> list[str]:
    """The transport: ssh, and on the other side a Python that waits for its orders."""
    python = _quoted(node.interpreter.path if node.interpreter is not None else "python3")
    options = [word for option in OPTIONS for word in ("-o", option)]
    starter = f"exec sh -c '{_FIND}' sh {python} '{relayed.STARTER}'"
    return ["ssh", "-T", *options, "--", node.destination or node.name.strip("[]"), starter]


def _quoted(path: str) -> str:
    """For any login shell; a ``~`` in front stays one."""
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}'
    return shlex.quote(path)
