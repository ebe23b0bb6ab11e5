"""Where a remote node keeps what it is sent: names in the plan, folders once it was reached.

A plan is made before any node is: in it these folders stand as they usually are, so that
`tfcluster plan` shows something a person can go to; the node itself says where its cache lies.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    return posixpath.join(_rooted(chosen), "tfcluster", RUN, file_name(node), "work")


def for_any(workdir: str, node: str, name: str) -> str:
    """The node's `workdir` with `name` in the place of the node's own."""
    above, between, below = workdir.rpartition(f"/{file_name(node)}/")
    return f"{above}/{name}/{below}" if between else workdir


def chosen_folder(workdir: str) -> str | None:
    """What `workdir` was made from, where the spec named a folder."""
    chosen, between, _ = workdir.partition(f"/tfcluster/{RUN}/")
    return chosen if between else None


def _rooted(folder: str) -> str:
    return folder if folder.startswith(("/", "~")) else f"~/{folder}"


def file_name(node: str) -> str:
    """`node` as one plain component of a path."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", node) or "_"


@dataclass(frozen=True, slots=True)
class There:
    """What a node has in the place of the plan's names."""

    cache: str
    run_id: str
    python: str | None = None
    """The Python that its agent runs with."""
    shared: tuple[str, str] | None = None
    """The plan's workdir of the node, and the folder that is shared with us in its place."""

    def folder(self, path: str) -> str:
        """`path` of the plan, as it is there; a ``~`` in front is the node's own home."""
        if self.shared is not None and _is_in(path, self.shared[0]):
            path = self.shared[1] + path.removeprefix(self.shared[0])
        return self._at_home(path.replace(CACHE, self.cache).replace(RUN, self.run_id))

    def command(self, command: Command) -> Command:
        """`command` as the node runs it; a user's own words and values stay as they are."""
        program, *words = command.argv
        return replace(
            command,
            argv=(self._program(program), *map(self._own(command), words)),
            env=tuple(map(self._variable, command.env)),
            cwd=self.folder(command.cwd),
        )

    def _own(self, command: Command) -> Callable[[str], str]:
        return lambda word: self.folder(word) if is_ours(word, command) else word

    def _program(self, path: str) -> str:
        """A folder that holds ``bin/python`` may stand for it, and a path relative to the home."""
        found = self.folder(path)
        if self.python is None or "/" not in found:
            return found
        is_folder = self.python.startswith(found.rstrip("/") + "/bin/")
        is_relative = not found.startswith("/") and self.python.endswith(found.lstrip("./"))
        return self.python if is_folder or is_relative else found

    def _variable(self, var: EnvVar) -> EnvVar:
        if var.source.endswith("tfcluster"):
            value = var.value.replace(CACHE, self.cache).replace(RUN, self.run_id)
            return replace(var, value=value)
        if var.source.endswith(".data_dir"):
            return replace(var, value=self._at_home(var.value))
        return var

    def _at_home(self, path: str) -> str:
        home = self.cache.removesuffix(CACHE[1:])
        return home + path[1:] if path == "~" or path.startswith("~/") else path


def is_ours(word: str, command: Command) -> bool:
    """Whether a word of the command is a path that we made: the script, or one in the bundle."""
    return _is_in(word, f"{CACHE}/bundles") or _is_in(word, command.cwd)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
