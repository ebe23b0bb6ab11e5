"""The folders of a remote node: their names in a plan, and their paths on the node.

A plan is made before any node is reached. It names these folders by their usual paths, which
`tfcluster plan` shows; the node reports its real cache folder when it connects.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import Final

from tfcluster.plans.plan import Command, EnvVar

CACHE: Final = "~/.cache/tfcluster"
RUN: Final = "$TFCLUSTER_RUN_ID"


def node_folder(node: str) -> str:
    """Return the folder of a run on a node (code, logs, checkpoints); hosts may share a home."""
    return f"{CACHE}/nodes/{RUN}/{file_name(node)}"


def workdir(node: str, chosen: str | None) -> str:
    """Return the folder of the code's copy on `node`.

    `chosen` is the spec's ``runtime.hosts.H.workdir``; the copy gets its own folder in it, so that
    the user's files there are kept.
    """
    if chosen is None:
        return posixpath.join(node_folder(node), "work")
    rooted = chosen if chosen.startswith(("/", "~")) else f"~/{chosen}"
    return posixpath.join(rooted, "tfcluster", RUN, file_name(node), "work")


def rename_node(workdir: str, node: str, name: str) -> str:
    """Return the node's `workdir` with `name` instead of the node's name."""
    above, between, below = workdir.rpartition(f"/{file_name(node)}/")
    return f"{above}/{name}/{below}" if between else workdir


def chosen_folder(workdir: str) -> str | None:
    """Return the spec's folder from which `workdir` was made, or None."""
    chosen, between, _ = workdir.partition(f"/tfcluster/{RUN}/")
    return chosen if between else None


def file_name(node: str) -> str:
    """Return `node` as one component of a path."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", node) or "_"


def is_tfcluster_path(word: str, command: Command) -> bool:
    """Return whether a word of `command` is a path that tfcluster made: in workdir or bundle."""
    return _is_in(word, f"{CACHE}/bundles") or _is_in(word, command.cwd)


@dataclass(frozen=True, slots=True)
class NodePaths:
    """The real paths of a node for the names in a plan."""

    cache: str
    run_id: str
    python: str | None = None
    """The Python that runs the agent."""
    shared: tuple[str, str] | None = None
    """The plan's workdir of the node, and the folder shared with this machine that replaces it."""

    def folder(self, path: str) -> str:
        """Return the plan's `path` as it is on the node; ``~`` is the node's home."""
        if self.shared is not None and _is_in(path, self.shared[0]):
            path = self.shared[1] + path.removeprefix(self.shared[0])
        return self._expand_home(path.replace(CACHE, self.cache).replace(RUN, self.run_id))

    def command(self, command: Command) -> Command:
        """Return `command` as the node runs it; the user's arguments and values are unchanged."""
        program, *words = command.argv
        words = [self.folder(w) if is_tfcluster_path(w, command) else w for w in words]
        return replace(
            command,
            argv=(self._program(program), *words),
            env=tuple(map(self._variable, command.env)),
            cwd=self.folder(command.cwd),
        )

    def _program(self, path: str) -> str:
        """Return the path of the program on the node.

        A Python may be given as its environment's folder, or relative to the home.
        """
        program = self.folder(path)
        if self.python is None or "/" not in program:
            return program
        is_folder = self.python.startswith(program.rstrip("/") + "/bin/")
        is_relative = not program.startswith("/") and self.python.endswith(program.lstrip("./"))
        return self.python if is_folder or is_relative else program

    def _variable(self, var: EnvVar) -> EnvVar:
        if var.origin == "tfcluster":
            value = var.value.replace(CACHE, self.cache).replace(RUN, self.run_id)
            return replace(var, value=value)
        if var.origin == "data_dir":
            return replace(var, value=self._expand_home(var.value))
        return var

    def _expand_home(self, path: str) -> str:
        home = self.cache.removesuffix(CACHE[1:])
        return home + path[1:] if path == "~" or path.startswith("~/") else path


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
