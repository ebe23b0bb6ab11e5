"""The argv of a task and the paths in it, from what the spec says about the job."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

PREPARE_MODULE: Final = "tfcluster_workers.data.prepare"
DATA_OPTIONS: Final = ("--dataset", "--data-dir")


class Runnable(Protocol):
    """The spec's `job` and its `prepare`: exactly one of the three is set."""

    @property
    def script(self) -> str | None: ...
    @property
    def module(self) -> str | None: ...
    @property
    def command(self) -> Sequence[str] | None: ...
    @property
    def args(self) -> Sequence[str]: ...


def absolute(path: str, folder: str, environ: Mapping[str, str]) -> str:
    """`path` relative to `folder`, ``~`` read as the launcher's home."""
    if path == "~" or path.startswith("~/"):
        path = environ.get("HOME", "~") + path[1:]
    return posixpath.normpath(posixpath.join(folder, path))


def storage(path: str, folder: str, environ: Mapping[str, str]) -> str:
    """The same; a URL such as ``gs://bucket/x`` stays as it is."""
    return path if "://" in path else absolute(path, folder, environ)


def argv(
    what: Runnable, *, python: str, workdir: str, bundle: str, boot: bool, more: Sequence[str] = ()
) -> tuple[str, ...]:
    """What is executed; `boot`: through the workers' half, which reports for the script."""
    args = (*what.args, *more)
    if what.command is not None:
        return (*what.command, *args)
    start = (python, f"{bundle}/workers/tfcluster_workers/boot.py") if boot else (python,)
    if what.script is not None:
        script = posixpath.normpath(posixpath.join(workdir, what.script))
        return (*start, *(("script",) if boot else ()), script, *args)
    return (*start, "module" if boot else "-m", what.module or "", *args)


def data_args(step: Runnable, args: Sequence[str]) -> tuple[str, ...]:
    """What a ready-made job's arguments say about its data: its prepare step needs the same."""
    if step.module != PREPARE_MODULE:
        return ()
    values = dict(zip(args, (*args[1:], ""), strict=False))  # of no arguments there is no value
    alone = (part for name in DATA_OPTIONS if name in values for part in (name, values[name]))
    joined = (arg for arg in args if arg.startswith(tuple(f"{name}=" for name in DATA_OPTIONS)))
    return (*alone, *joined)


def python_path(current: str | None, bundle: str) -> str:
    """PYTHONPATH with the workers' half at its very end, so that nothing of the user's moves."""
    return ":".join(part for part in (current, f"{bundle}/workers") if part)
