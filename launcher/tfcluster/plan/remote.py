"""Where a remote node keeps what it is sent: names in the plan, folders once it was reached.

A plan is made before any node is: in it these folders stand as they usually are, so that
`tfcluster plan` shows something a person can go to; the node itself says where its cache lies.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from typing import Final

from tfcluster.plan.plan import Command, EnvVar

CACHE: Final = "~/.cache/tfcluster"
RUN: Final = "$TFCLUSTER_RUN_ID"


def node_folder(node: str) -> str:
    """One per run and node, since several hosts may have one home: code, logs, checkpoints."""
    return f"{CACHE}/nodes/{RUN}/{file_name(node)}"


def workdir(node: str, chosen: str | None) -> str:
    """`chosen`: the spec's ``runtime.hosts.H.workdir``, in which the copy gets a folder of its own:
    what the user has there stays."""
    if chosen is None:
        return posixpath.join(node_folder(node), "work")
    return posixpath.join(chosen, "tfcluster", RUN, file_name(node), "work")


def file_name(node: str) -> str:
    """`node` as one plain component of a path."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", node) or "_"


def there(text: str, *, cache: str, run_id: str) -> str:
    """`text` with the names of this module replaced by the node's own folders."""
    return text.replace(CACHE, cache).replace(RUN, run_id)


def command_there(command: Command, *, cache: str, run_id: str) -> Command:
    """`command` as the node runs it; of the variables only ours can name these folders."""

    def value(var: EnvVar) -> EnvVar:
        return replace(var, value=there(var.value, cache=cache, run_id=run_id))

    return replace(
        command,
        argv=tuple(there(word, cache=cache, run_id=run_id) for word in command.argv),
        env=tuple(value(var) if var.source == "tfcluster" else var for var in command.env),
        cwd=there(command.cwd, cache=cache, run_id=run_id),
    )
