"""Gather the facts that planning needs: this machine's addresses, cores, GPUs, Pythons, code."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.agent.error_text import describe_error
from tfcluster.agent.node import limits, machine
from tfcluster.backends.bundle import workers_folder
from tfcluster.discovery import interpreters
from tfcluster.discovery.interpreters import Choice, Reason, choose
from tfcluster.errors import InterpreterError, UsageError
from tfcluster.plans import command
from tfcluster.plans.context import LOCAL, PlacedTask, PlanContext
from tfcluster.plans.environment import parse_env_file
from tfcluster.plans.job_facts import needed_packages, with_found_strategy
from tfcluster.plans.placement import by_node
from tfcluster.plans.plan import Gpu, Interpreter
from tfcluster.plans.resources import Cores
from tfcluster.plans.script_analysis import Code
from tfcluster.spec.cluster import is_loopback

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_MAX_FILES = 60
"""Limit of the job's own modules that are read for their imports."""


def gather(
    spec: ClusterSpec,
    tasks: tuple[PlacedTask, ...],
    *,
    spec_dir: Path,
    bundle: str,
    python: str | None = None,
    calling_python: str | None = None,
    environ: Mapping[str, str] = os.environ,
    meanwhile: Callable[[], None] = lambda: None,
) -> PlanContext:
    """Gather what `make_plan` needs besides `spec`; does not start TensorFlow.

    `tasks`: those of the spec, with their nodes; `spec_dir`: the folder of the spec; `bundle`: the
    folder of the bundle on this machine; `python`: the value of ``--python``; `calling_python`:
    that of local tasks if nothing names one; `meanwhile`: called while the Python of tasks on this
    machine reports its version, if there are any. Raises UsageError (exit 2) for a
    requested Python that does not exist, and for an unreadable ``env_file``.
    """
    used = {task.backend: task.kind for task in tasks}
    context = PlanContext(
        environ=dict(environ),
        spec_dir=str(spec_dir.absolute()),
        tasks=tasks,
        cores=Cores(tuple(map(tuple, limits.by_node())), limits.limit()),
        gpus=visible_gpus(environ),
        bundles={LOCAL: bundle},
        backends_here=frozenset(name for name, kind in used.items() if kind.is_here(environ)),
    )
    workdir = Path(command.resolve_path(spec.job.workdir, context.spec_dir, environ))
    context = replace(context, env_file=_read_env_file(spec, context))
    choices = _interpreters(spec, context, workdir, python, calling_python)
    return _with_job(spec, context, workdir, choices, meanwhile)


def addresses_to_compare(spec: ClusterSpec) -> frozenset[str]:
    """Return `own_addresses`; empty if the spec names only loopback, which is always local."""
    return frozenset() if all(map(is_loopback, spec.hosts)) else own_addresses()


def own_addresses() -> frozenset[str]:
    """Return the addresses of this machine's interfaces, and its host name."""
    import psutil  # only where a spec names addresses

    addresses = {socket.gethostname()}
    for entries in psutil.net_if_addrs().values():
        inet = (e.address for e in entries if e.family in (socket.AF_INET, socket.AF_INET6))
        addresses.update(address.partition("%")[0] for address in inet)
    return frozenset(addresses)


def visible_gpus(environ: Mapping[str, str]) -> tuple[Gpu, ...] | None:
    """Return this machine's GPUs, and named parts of GPUs, that CUDA_VISIBLE_DEVICES shows.

    None if the driver does not answer, and nothing names GPUs: such a machine may have some.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    try:
        code, lines, _ = machine.query_driver("index,uuid", environ.get("PATH", os.defpath))
    except TimeoutError:
        return None if visible is None else tuple(machine.visible_gpus(visible))
    except OSError:
        return ()
    rows = [line.replace(" ", "").split(",") for line in lines] if code == 0 else []
    present = {int(row[0]): "".join(row[1:]) for row in rows if row[0].isdecimal()}
    return tuple(present) if visible is None else tuple(_parse_visible(visible, present))


def _parse_visible(visible: str, present: Mapping[int, str]) -> Iterator[Gpu]:
    """Parse CUDA_VISIBLE_DEVICES as CUDA does; yields indexes of `present` (index → UUID).

    Its parts are indexes or prefixes of UUIDs; the first that is neither ends the list. A MIG
    slice has no index and keeps its name, and so do all where the driver lists none.
    """
    for gpu in machine.visible_gpus(visible):
        matches: list[Gpu] = [
            index
            for index, uuid in present.items()
            if gpu == index or (isinstance(gpu, str) and uuid.startswith(gpu))
        ]
        if isinstance(gpu, str) and (gpu.startswith("MIG-") or not present):
            matches = [gpu]
        if len(matches) != 1:
            return
        yield matches[0]


def _with_job(
    spec: ClusterSpec,
    context: PlanContext,
    workdir: Path,
    choices: Mapping[str, Choice],
    meanwhile: Callable[[], None],
) -> PlanContext:
    """Return `context` with the Pythons and the code of the job."""
    code = _read_job_code(spec, workdir)
    if LOCAL in choices:
        meanwhile()
    context = replace(
        context,
        interpreters={node: choice() for node, choice in choices.items()},
        imports=code.imports if code is not None else None,
        code=code or _read_job_code(spec, workdir, workers=workers_folder()),
    )
    needs = needed_packages(with_found_strategy(spec, context), context)
    if LOCAL not in context.interpreters or not needs:
        return context
    here = context.interpreters[LOCAL]
    chosen = interpreters.own_instead(here, needs, environ=context.environ, cwd=workdir)
    return replace(context, interpreters={**context.interpreters, LOCAL: chosen})


def _interpreters(
    spec: ClusterSpec,
    context: PlanContext,
    workdir: Path,
    python: str | None,
    calling_python: str | None,
) -> dict[str, Choice]:
    """Return node → Python; for a remote node only the path, as the spec gives it."""
    choices: dict[str, Choice] = {}
    for node, tasks in by_node(context.tasks).items():
        path, field = (python, ("--python",)) if python else requested_python(spec, tasks[0].host)
        why = ".".join(field)
        if tasks[0].kind.capabilities.has_image:
            choices[node] = partial(_image_python, path, why, is_option=bool(python))
            continue
        base = Path.cwd() if python else Path(context.spec_dir)
        wrap = shlex.join(spec.runtime.wrap)
        if node == LOCAL or (tasks[0].kind.capabilities.sees_files and not wrap):
            if path is None and calling_python:
                path, why = calling_python, Reason.CALLING
            choices[node] = choose(path, why, base=base, workdir=workdir, environ=context.environ)
        else:
            why = f"in {wrap}" if wrap else why or "python3 on its PATH"
            choices[node] = partial(Interpreter, path or "python3", why)
    return choices


def _image_python(path: str | None, why: str, *, is_option: bool) -> Interpreter:
    """Return the Python of a container, in which a path relative to the spec means nothing."""
    if path is not None and "/" in path and not path.startswith("/"):
        if is_option:
            fix = "leave it out, or give a path in the image: --python /opt/tf/bin/python"
            raise InterpreterError(f"{path} is not a path in a Docker image ({why})", fix=fix)
        return Interpreter("python3", f"the image's; {why} is a path of this machine")
    return Interpreter(path or "python3", why or "the image's")


def requested_python(spec: ClusterSpec, host: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the Python that the spec requests for `host`, or None, and the field's path."""
    of_host = spec.runtime.of_host(host, "python")
    if of_host[0] is None and spec.runtime.python is not None:
        return spec.runtime.python, ("runtime", "python")
    return of_host


def _read_env_file(spec: ClusterSpec, context: PlanContext) -> tuple[tuple[str, str], ...]:
    if not spec.job.env_file:
        return ()
    path = command.resolve_path(spec.job.env_file, context.spec_dir, context.environ)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "job.env_file is relative to the spec's folder"
        raise UsageError(
            f"job.env_file: cannot read {path}: {describe_error(error)}", fix=fix
        ) from error
    return parse_env_file(text, name=path)


def _read_job_code(spec: ClusterSpec, workdir: Path, workers: Path | None = None) -> Code | None:
    """Read the job's own files, following their imports below `workdir`; None without a file.

    `workers`: the folder of tfcluster_workers, whose modules are read, too; not what is installed
    beside it.
    """
    starts = [_first_file(program, workdir, workers) for program in command.programs(spec.job)]
    queue = list(
        dict.fromkeys(path for path in starts if path is not None and os.path.isfile(path))
    )
    if not queue:
        return None
    code, queued = Code(), {*queue}
    folders = (*(path.parent for path in queue), workdir)
    while queue and len(queued) <= _MAX_FILES:
        path = queue.pop()
        read = _read_code(path)
        code |= read
        imported = {file for n in read.imports for file in _module_files(n, folders, workers)}
        queue += imported - queued
        queued |= imported
    return code


def _first_file(program: command.Program, workdir: Path, workers: Path | None) -> Path | None:
    if program.script is not None:
        return workdir / program.script
    if program.module is None:
        return None
    if program.module == command.FUNCTION_MODULE:
        return workdir.joinpath(*program.args, command.FUNCTION_CODE)
    return next(_module_files(program.module, (workdir,), workers), None)


def _read_code(path: Path) -> Code:
    try:
        return Code.of_file(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return Code()


def _module_files(name: str, folders: Iterable[Path], workers: Path | None) -> Iterator[Path]:
    parts = [part for part in name.split(".") if part]
    bases = [folder.joinpath(*parts) for folder in folders]
    if workers is not None and parts[:1] == [workers.name]:
        bases.append(workers.joinpath(*parts[1:]))
    for base in bases:
        for path in (base.with_suffix(".py"), base / "__main__.py", base / "__init__.py"):
            if parts and os.path.isfile(path):
                yield path
