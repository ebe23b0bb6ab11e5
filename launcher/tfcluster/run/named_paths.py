"""Whether what a spec names on this machine is there: files, folders, and the tasks' Python."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.agent.error_words import reason_of
from tfcluster.errors import SpecError
from tfcluster.plan import command
from tfcluster.plan.cluster import Seat, by_node, seats
from tfcluster.plan.surroundings import LOCAL
from tfcluster.run import interpreter
from tfcluster.run.surroundings import addresses_to_compare, python_wish
from tfcluster.spec.fields import Finding

if TYPE_CHECKING:
    from tfcluster.spec.load import LoadedSpec
    from tfcluster.spec.model import ClusterSpec


def require(
    loaded: LoadedSpec,
    *,
    environ: Mapping[str, str] = os.environ,
    here: Collection[str] = (),
    python: str | None = None,
) -> None:
    """Raise SpecError (exit 2) for what is not there, each thing with the place that names it.

    `here`: more names of this machine; `python`: the value of ``--python``, which replaces the
    spec's. What only another machine can have is not checked.
    """
    own = addresses_to_compare(loaded.spec).union(here)
    found = _missing(loaded.spec, str(loaded.folder.absolute()), environ, own, python)
    if problems := [loaded.problem(finding) for finding in found]:
        raise SpecError(problems)


def _missing(
    spec: ClusterSpec,
    folder: str,
    environ: Mapping[str, str],
    own: Collection[str],
    python: str | None,
) -> Iterator[Finding]:
    listed = seats(spec, own)
    workdir = command.absolute(spec.job.workdir, folder, environ)
    if fault := _fault(workdir, "folder"):
        yield Finding(("job", "workdir"), fault, f"it is relative to the spec's folder, {folder}")
    else:
        yield from _below(spec, workdir, has_copies=any(seat.node != LOCAL for seat in listed))
    if spec.job.env_file is not None:
        path = command.absolute(spec.job.env_file, folder, environ)
        if fault := _fault(path, "file"):
            cure = f"it is relative to the spec's folder, {folder}"
            yield Finding(("job", "env_file"), fault, cure)
    if python is None:
        yield from _python(spec, folder, environ, listed)


def _below(spec: ClusterSpec, workdir: str, *, has_copies: bool) -> Iterator[Finding]:
    """What the workdir must hold; `has_copies`: other machines get a copy of it."""
    scripts: list[tuple[tuple[str, ...], str | None]] = [(("job", "script"), spec.job.script)]
    if spec.job.prepare is not None:
        scripts.append((("job", "prepare", "script"), spec.job.prepare.script))
    for key, own in spec.job.per_task.items():
        scripts.append((("job", "per_task", key, "script"), own.script))
    for field, script in scripts:
        if script is not None:
            path = posixpath.normpath(posixpath.join(workdir, script))
            if fault := _fault(path, "script"):
                yield Finding(field, fault, f"it is relative to the workdir, {workdir}")
    for index, pattern in enumerate(spec.job.include if has_copies else ()):
        from tfcluster.run.code import include_fault  # and asyncio with it

        if (wrong := include_fault(Path(workdir), pattern)) is not None:
            yield Finding(("job", "include", index), *wrong)


def _python(
    spec: ClusterSpec, folder: str, environ: Mapping[str, str], listed: Collection[Seat]
) -> Iterator[Finding]:
    mine = by_node(listed).get(LOCAL)
    wish = python_wish(spec, mine[0].host) if mine else None
    if wish is not None and interpreter.find(wish[0], Path(folder), environ) is None:
        message = interpreter.not_there(wish[0], Path(folder))
        yield Finding(wish[1], message, interpreter.NAME_ONE)


def _fault(path: str, what: str) -> str:
    """What is wrong with a local path; empty where it can be used."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {what} at {path}"
    except OSError as error:
        return f"{path} cannot be read: {reason_of(error)}"
    is_folder = stat.S_ISDIR(mode)
    return f"{path} is not a folder" if what == "folder" and not is_folder else ""
