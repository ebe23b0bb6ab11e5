"""`SshNodes`: hosts to which the system's ssh client logs in without a prompt.

The user's ssh configuration, jump hosts, agents and known hosts apply; host keys are verified as
usual.
"""

from __future__ import annotations

import re
import shlex
import shutil
from typing import Self

from tfcluster.backends.relayed import STARTER, DialFault, RelayedNodes, Unreached
from tfcluster.errors import SetupError
from tfcluster.plans.plan import NodePlan

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

_OTHER_PYTHON = "set runtime.hosts.{name}.python to a Python (3.9 or newer) of that host"
_FIXES = (
    (r"Permission denied \(", "ssh must log in without a prompt: ssh-copy-id {to}"),
    (
        "Host key for .* has changed",
        "its key is another one than before: it was installed anew, or another machine answers in"
        " its place. Ask who runs it; only if the new fingerprint is right, remove the old key as"
        " ssh says, and log in once: ssh {to}",
    ),
    (
        "Host key verification failed",
        "its key is not known yet: log in once, and compare the fingerprint that ssh shows with"
        " what those who run the host publish: ssh {to}",
    ),
    ("Could not resolve hostname", "is the name spelled correctly? see `ssh -v {to}`"),
    (
        "^ssh: connect to host",
        "is the host up, and does sshd listen? runtime.hosts.{name}.ssh sets another address",
    ),
    ("No space left on device|Disk quota exceeded", "make room in ~/.cache on the host"),
    (
        r"(?:not found|No such file or directory|[Cc]annot execute.*|Permission denied)$"
        r"|^Unknown option: -I|^SyntaxError",
        _OTHER_PYTHON,
    ),
)
"""(pattern, fix) for what ssh, a shell or a Python prints; the first match counts."""
_FAULTS = {
    DialFault.OLD_PYTHON: _OTHER_PYTHON,
    DialFault.UNSAFE_FOLDER: "make ~/.cache/tfcluster on the host writable: it names the folder to"
    " use instead",
    DialFault.LOGIN: "check what runs at its login: ssh {to} true",
}


class SshNodes(RelayedNodes):
    """Hosts that are reached by ssh."""

    async def __aenter__(self) -> Self:
        if shutil.which("ssh") is None:
            raise SetupError("there is no ssh client on this machine", fix="install openssh-client")
        return self

    @classmethod
    def argv(cls, node: NodePlan) -> list[str]:
        """Return the transport: ssh, and on the host a Python that waits for its orders."""
        options = [word for option in OPTIONS for word in ("-o", option)]
        starter = f"exec sh -c '{_FIND}' sh {_quoted(node.python)} '{STARTER}'"
        if node.wrap:  # its Python is in there, where `_FIND` cannot look
            words = " ".join(map(_quoted, (*node.wrap, node.python)))
            starter = f"exec {words} -I -S -c '{STARTER}'"
        return ["ssh", "-T", *options, "--", node.destination or node.name.strip("[]"), starter]

    @classmethod
    def fix(cls, node: NodePlan, error: Unreached) -> str:
        fixes = (fix for pattern, fix in _FIXES if re.search(pattern, error.stderr, re.MULTILINE))
        fix = _FAULTS[error.fault] if error.fault else next(fixes, "see `ssh -v {to}`")
        return fix.format(to=node.destination or node.name, name=node.name)


def _quoted(path: str) -> str:
    """Quote `path` for any login shell; a leading ``~`` still means the home folder."""
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}'
    return shlex.quote(path)
