"""The plan of a warm start (`up --warm`): the agent keeps its imports for the next run, and a key
says which run may use them."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tfcluster import __version__
from tfcluster.agent.node.limits import allowed
from tfcluster.agent.processes import IS_LINUX
from tfcluster.errors import UsageError
from tfcluster.plans.context import LOCAL
from tfcluster.plans.plan import NodePlan, Plan, Warm
from tfcluster.plans.preloading import PreloadPlan, is_read_at_import, preload_on


def keep_warm(plan: Plan, seconds: float) -> Plan:
    """Return `plan` with a local agent that stays for `seconds` after the run with its imports.

    Raises UsageError if tasks on this machine import nothing ahead.
    """
    preload = preload_on(plan, LOCAL) if any(n.name == LOCAL for n in plan.nodes) else None
    if not IS_LINUX or preload is None or plan.node(LOCAL).network == "private":
        raise UsageError(
            "--warm has nothing to keep: tasks on this machine import nothing ahead",
            fix="omit --warm; `tfcluster help preload` says when tasks import ahead",
        )
    warm = Warm(_key(preload, plan.node(LOCAL)), seconds)
    nodes = (replace(n, warm=warm) if n.name == LOCAL else n for n in plan.nodes)
    return replace(plan, nodes=tuple(nodes))


def _key(preload: PreloadPlan, node: NodePlan) -> str:
    """Return a digest of everything that is fixed when a process starts.

    That is tfcluster's code (its digest is in the importer's path), Python and its packages,
    variables that are read by an import, and what a process inherits from the shell.
    """
    inherited = {name: value for name, value in os.environ.items() if is_read_at_import(name)}
    variables = {var.name: var.value for var in preload.command.env if is_read_at_import(var.name)}
    parts: list[object] = [preload.command.argv, __version__, sys.executable, inherited | variables]
    parts += [_inheritance(), _python(node), _import_times({**os.environ, **variables})]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _python(node: NodePlan) -> list[object]:
    """Describe the Python; every installation changes the mtime of a `site-packages` folder."""
    if node.interpreter is None:
        return []
    path = Path(node.interpreter.path)
    packages = sorted(path.parent.parent.glob("lib*/python*/site-packages"))
    return [node.interpreter.version, os.path.realpath(path), *map(_mtime_ns, (path, *packages))]


def _import_times(environ: Mapping[str, str]) -> list[object]:
    """Return the mtimes of the PYTHONPATH folders and of Keras's `keras.json` (keras.io)."""
    given = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    home = environ.get("KERAS_HOME") or f"{environ.get('HOME', '')}/.keras"
    return [_mtime_ns(Path(path)) for path in (*given, f"{home}/keras.json")]


def _mtime_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _inheritance() -> list[object]:
    umask = os.umask(0o077)
    os.umask(umask)
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    spaces = [os.readlink(space) for space in sorted(Path("/proc/self/ns").iterdir())]
    groups = Path("/proc/self/cgroup").read_text()
    process = [umask, os.nice(0), sorted(allowed()), sorted(os.getgroups())]
    return [*process, limits, spaces, groups]
