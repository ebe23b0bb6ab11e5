"""`SshNodes`: hosts to which the system's ssh client logs in without a prompt.

The user's ssh configuration, jump hosts, agents and known hosts apply; host keys are verified as
usual.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from tfcluster.agent.catalogue import LostRunEnded
from tfcluster.backends import relayed
from tfcluster.backends.base import Nodes, RunContext
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.plans.plan import NodePlan
from tfcluster.wire.link import AgentLink

CONNECT_S = 8
OPTIONS = (
    "BatchMode=yes",  # never prompt
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "RequestTTY=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",  # not in ClearAllForwardings: tasks could log in elsewhere as the user
    "RemoteCommand=none",
    "LogLevel=ERROR",
    # A shared connection that is cut would be dialled over again and again.
    "ControlMaster=no",
    "ControlPath=none",
)

_FIND = 'p=$1; case $p in */*) [ -d "$p" ] && p=$p/bin/python;; esac; exec "$p" -I -S -c "$2"'
"""Shell code that runs Python code `$2` with the Python `$1`; a folder means its ``bin/python``.

It is passed within single quotes, which all login shells understand."""

_FIXES = (
    (r"Permission denied \(", "ssh must log in without a prompt: ssh-copy-id {to}"),
    ("Host key verification failed", "check its key, then accept it: ssh {to}"),
    ("Could not resolve hostname", "is the name spelled correctly? see `ssh -v {to}`"),
    (
        "^ssh: connect to host",
        "is the host up, and does sshd listen? runtime.hosts.{name}.ssh sets another address",
    ),
    ("No space left on device|Disk quota exceeded", "make room in ~/.cache on the host"),
    (
        "belongs to another user|other users can write to it|not a folder but a link",
        "make ~/.cache/tfcluster on the host writable: it names the folder to use instead",
    ),
    ("does its login hang|end the shell", "check what runs at its login: ssh {to} true"),
    (
        r"(?:not found|No such file or directory|[Cc]annot execute.*|Permission denied)$"
        r"|^Unknown option: -I|^SyntaxError|^Python 3.9 or newer is needed",
        "set runtime.hosts.{name}.python to a Python (3.9 or newer) of that host",
    ),
)
"""(pattern, fix) for what ssh, a shell or a Python prints; the first match counts."""


class SshNodes(Nodes):
    """Hosts that are reached by ssh."""

    def __init__(self, planned: Sequence[NodePlan], run: RunContext) -> None:
        super().__init__(planned, run)
        self._agents: dict[str, Mapping[str, Any] | None] = {}
        """Node → identity of the last agent reached there."""

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        """Log in and connect to the run's agent. Raises SetupError with ssh's message."""
        if shutil.which("ssh") is None:
            raise SetupError("there is no ssh client on this machine", fix="install openssh-client")
        try:
            link = await relayed.connect(
                node.name,
                argv(node),
                self.run,
                token=token,
                former=self._agents.get(node.name),
                is_fenced=is_fenced,
            )
        except relayed.Unreached as error:
            raise _lost(node, error) from error
        self._agents[node.name] = link.welcome.identity
        return link

    @staticmethod
    async def end_run(node: NodePlan, *, run_id: str, former: Mapping[str, Any]) -> LostRunEnded:
        try:
            return await relayed.end_run(argv(node), run_id=run_id, former=former)
        except relayed.Unreached as error:
            raise _lost(node, error) from error


def argv(node: NodePlan) -> list[str]:
    """Return the transport: ssh, and on the host a Python that waits for its orders."""
    python = _quoted(node.python)
    options = [word for option in OPTIONS for word in ("-o", option)]
    starter = f"exec sh -c '{_FIND}' sh {python} '{relayed.STARTER}'"
    return ["ssh", "-T", *options, "--", node.destination or node.name.strip("[]"), starter]


def _lost(node: NodePlan, error: relayed.Unreached) -> NodeLostError:
    """Return the error for a node, with what to do about the message of ssh or of a shell."""
    fixes = (fix for pattern, fix in _FIXES if re.search(pattern, str(error), re.MULTILINE))
    fix = next(fixes, "see `ssh -v {to}`")
    to = node.destination or node.name
    return NodeLostError(
        f"{node.name} cannot be reached: {error}", fix=fix.format(to=to, name=node.name)
    )


def _quoted(path: str) -> str:
    """Quote `path` for any login shell; a leading ``~`` still means the home folder."""
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}'
    return shlex.quote(path)
