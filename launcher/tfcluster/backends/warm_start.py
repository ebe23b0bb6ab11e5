"""`up --warm`: which run may begin with what an earlier one has imported."""

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
from tfcluster.agent.processes import IS_LINUX
from tfcluster.errors import UsageError
from tfcluster.plan.context import LOCAL
from tfcluster.plan.plan import NodePlan, Plan, Warm
from tfcluster.plan.preloading import Preload, is_read_at_import, preload_on


def keep_warm(plan: Plan, seconds: float, environ: Mapping[str, str] = os.environ) -> Plan:
    """`plan`, whose agent here stays so long after the run with what it has imported.

    Raises UsageError where there is nothing to keep.
    """
    ahead = preload_on(plan, LOCAL) if any(n.name == LOCAL for n in plan.nodes) else None
    if not IS_LINUX or ahead is None or plan.node(LOCAL).network == "private":
        raise UsageError(
            "--warm keeps what tasks on this machine import ahead, and here they import nothing so",
            fix="leave it out; `tfcluster help preload` says when they do",
        )
    warm = Warm(_key(ahead, plan.node(LOCAL), environ), seconds)
    nodes = (replace(n, warm=warm) if n.name == LOCAL else n for n in plan.nodes)
    return replace(plan, nodes=tuple(nodes))


def _key(ahead: Preload, node: NodePlan, environ: Mapping[str, str]) -> str:
    """Digest of what a process has from its start: our own code (its digest is in the importer's
    path), Python and its packages, variables that are read at an import, and what it inherits
    from the shell."""
    inherited = {name: value for name, value in environ.items() if is_read_at_import(name)}
    own = {var.name: var.value for var in ahead.command.env if is_read_at_import(var.name)}
    parts = [ahead.command.argv, __version__, sys.executable, inherited | own, _inheritance()]
    parts += [_python(node), _folders({**environ, **own})]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _python(node: NodePlan) -> list[object]:
    """Anything that is installed changes the time of a folder of packages."""
    if node.interpreter is None:
        return []
    path = Path(node.interpreter.path)
    packages = sorted(path.parent.parent.glob("lib*/python*/site-packages"))
    return [node.interpreter.version, os.path.realpath(path), *map(_time, (path, *packages))]


def _folders(environ: Mapping[str, str]) -> list[object]:
    """What else is on the path of an import, and Keras's own settings (keras.io, `keras.json`)."""
    given = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    home = environ.get("KERAS_HOME") or f"{environ.get('HOME', '')}/.keras"
    return [_time(Path(path)) for path in (*given, f"{home}/keras.json")]


def _time(path: Path) -> int | None:
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
    own = [umask, os.nice(0), sorted(os.sched_getaffinity(0)), sorted(os.getgroups())]
    return [*own, limits, spaces, groups]
