"""The edge of planning: look at this machine once, cheaply, and hand on what was seen as values."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.agent.error_text import describe_error
from tfcluster.agent.node import limits, machine
from tfcluster.discovery.interpreters import Choice, choose, known
from tfcluster.errors import InterpreterError, UsageError
from tfcluster.plan import command
from tfcluster.plan.context import LOCAL, PlanContext
from tfcluster.plan.environment import parse_env_file
from tfcluster.plan.imports import Code
from tfcluster.plan.placement import DOCKER, by_node, is_loopback, place_tasks
from tfcluster.plan.plan import Interpreter
from tfcluster.plan.resources import Cores

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_MOST_FILES = 60
"""Of a job's own modules, how many are looked at for their imports."""


def empty_context() -> None:
    """Nobody has anything to do while a Python is asked."""


def gather(
    spec: ClusterSpec,
    *,
    spec_dir: Path,
    bundle: str,
    python: str | None = None,
    environ: Mapping[str, str] = os.environ,
    here: Collection[str] = (),
    meanwhile: Callable[[], None] = empty_context,
) -> PlanContext:
    """Everything `make_plan` needs to know besides `spec`; starts no TensorFlow.

    `spec_dir`: the folder of the spec; `bundle`: where the bundle lies unpacked on this
    machine; `python`: the value of ``--python``; `here`: more names of this machine;
    `meanwhile`: called while the tasks' Python tells what it is. Raises UsageError (exit 2) for a
    Python that was asked for and is not there, and for an unreadable ``env_file``.
    """
    seen = PlanContext(
        environ=dict(environ),
        spec_dir=str(spec_dir.absolute()),
        addresses=addresses_to_compare(spec).union(here),
        cores=Cores(tuple(map(tuple, limits.by_node())), limits.limit()),
        gpus=visible_gpus(environ),
        bundles={LOCAL: bundle},
        docker_is_local=spec.runtime.backend == DOCKER and _docker_is_here(environ),
    )
    workdir = Path(command.resolve_path(spec.job.workdir, seen.spec_dir, environ))
    return _with_job(spec, seen, workdir, python, meanwhile)


def _docker_is_here(environ: Mapping[str, str]) -> bool:
    from tfcluster.backends.docker import client  # and asyncio with it

    return client.is_here(environ)


def addresses_to_compare(spec: ClusterSpec) -> frozenset[str]:
    """`own_addresses`, unless loopback is all that is written: that is here on any machine."""
    return frozenset() if all(map(is_loopback, spec.hosts)) else own_addresses()


def own_addresses() -> frozenset[str]:
    """Addresses of this machine's interfaces, and its own name."""
    import psutil  # only where a spec names addresses

    found = {socket.gethostname()}
    for entries in psutil.net_if_addrs().values():
        inet = (e.address for e in entries if e.family in (socket.AF_INET, socket.AF_INET6))
        found.update(address.partition("%")[0] for address in inet)
    return frozenset(found)


def visible_gpus(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """Indexes of this machine's GPUs, less what CUDA_VISIBLE_DEVICES hides from the launcher; None
    where the driver does not answer: that is no machine without GPUs."""
    try:
        code, lines, _ = machine.query_driver("index,uuid", environ.get("PATH", os.defpath))
    except TimeoutError:
        return None
    except OSError:
        return ()
    rows = [line.replace(" ", "").split(",") for line in lines] if code == 0 else []
    present = {int(row[0]): "".join(row[1:]) for row in rows if row[0].isdecimal()}
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(present) if shown is None else tuple(_shown(shown, present))


def _shown(shown: str, present: Mapping[int, str]) -> Iterator[int]:
    """As CUDA reads its variable: numbers or the beginnings of UUIDs, up to the first that is
    neither. The parts of a GPU (MIG) have no number: a task sees what the shell shows."""
    for part in map(str.strip, shown.split(",")):
        of_part = [
            index
            for index, uuid in present.items()
            if part == str(index) or (part.startswith("GPU-") and uuid.startswith(part))
        ]
        if len(of_part) != 1:
            return
        yield of_part[0]


def _with_job(
    spec: ClusterSpec,
    seen: PlanContext,
    workdir: Path,
    python: str | None,
    meanwhile: Callable[[], None],
) -> PlanContext:
    env_file = _env_file(spec, seen)
    choices = _interpreters(spec, seen, workdir, python)
    own = _code(spec, (workdir,))
    meanwhile()
    return replace(
        seen,
        interpreters={node: choice.result() for node, choice in choices.items()},
        env_file=env_file,
        imports=own.imports if own is not None else None,
        code=own or _code(spec, (workdir, Path(seen.bundles[LOCAL]) / "workers")),
    )


def _interpreters(
    spec: ClusterSpec, seen: PlanContext, workdir: Path, python: str | None
) -> dict[str, Choice]:
    """Of a remote node only what the spec says; the node itself knows the rest."""
    found = {}
    for node, tasks in by_node(place_tasks(spec, seen.addresses)).items():
        wish, why = (python, "--python") if python else _wish(spec, tasks[0].host)
        if tasks[0].backend == DOCKER:
            found[node] = known(_of_image(wish, why))
            continue
        base = Path.cwd() if python else Path(seen.spec_dir)
        if node == LOCAL:
            found[node] = choose(wish, why, base=base, workdir=workdir, environ=seen.environ)
        else:
            found[node] = known(Interpreter(wish or "python3", why or "python3 on its PATH"))
    return found


def _of_image(wish: str | None, why: str) -> Interpreter:
    """A path relative to the spec is one of this machine: in a container it says nothing."""
    if wish is not None and "/" in wish and not wish.startswith("/"):
        if why == "--python":
            fix = "leave it out, or name one of the image: --python /opt/tf/bin/python"
            raise InterpreterError(f"{wish} is no Python of an image ({why})", fix=fix)
        return Interpreter("python3", f"the image's; {why} is a path of this machine")
    return Interpreter(wish or "python3", why or "the image's")


def python_wish(spec: ClusterSpec, host: str) -> tuple[str, tuple[str, ...]] | None:
    """The Python that the spec asks for on `host`, and the field; None where it does not."""
    for key in (host, "*"):
        settings = spec.runtime.hosts.get(key)
        if settings is not None and settings.python:
            return settings.python, ("runtime", "hosts", key, "python")
    return (spec.runtime.python, ("runtime", "python")) if spec.runtime.python else None


def _wish(spec: ClusterSpec, host: str) -> tuple[str | None, str]:
    found = python_wish(spec, host)
    return (found[0], ".".join(found[1])) if found is not None else (None, "")


def _env_file(spec: ClusterSpec, seen: PlanContext) -> tuple[tuple[str, str], ...]:
    if not spec.job.env_file:
        return ()
    path = command.resolve_path(spec.job.env_file, seen.spec_dir, seen.environ)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "job.env_file is relative to the spec's folder"
        raise UsageError(
            f"job.env_file: cannot read {path}: {describe_error(error)}", fix=fix
        ) from error
    return parse_env_file(text, name=path)


def _code(spec: ClusterSpec, folders: tuple[Path, ...]) -> Code | None:
    """What the job's own files say; None for a module that is below none of `folders`."""
    starts = [_first_file(program, folders) for program in command.programs(spec.job)]
    waiting = list(dict.fromkeys(one for one in starts if one is not None and os.path.isfile(one)))
    if not waiting:
        return None
    found, seen = Code(), {*waiting}
    beside = tuple(start.parent for start in waiting)
    while waiting and len(seen) <= _MOST_FILES:
        path = waiting.pop()
        read = _read_code(path, folders[0], is_start=path in starts)
        found |= read
        new = {f for n in read.imports for f in _siblings(n, (*beside, *folders))} - seen
        seen |= new
        waiting += new
    return found


def _first_file(program: command.Program, folders: tuple[Path, ...]) -> Path | None:
    if program.script is not None:
        return folders[0] / program.script
    if program.module is None:
        return None
    return next(_siblings(program.module, folders), None)


def _read_code(path: Path, workdir: Path, *, is_start: bool) -> Code:
    file = str(path.relative_to(workdir) if path.is_relative_to(workdir) else path)
    try:
        return Code.read(path.read_text(encoding="utf-8"), file=file, is_start=is_start)
    except (OSError, UnicodeDecodeError):
        return Code()


def _siblings(name: str, folders: tuple[Path, ...]) -> Iterator[Path]:
    parts = [part for part in name.split(".") if part]
    for folder in folders:
        base = folder.joinpath(*parts)
        for path in (base.with_suffix(".py"), base / "__main__.py", base / "__init__.py"):
            if parts and os.path.isfile(path):
                yield path
