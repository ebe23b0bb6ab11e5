"""Finds what forbids a fork after the imports, and the package whose import has left it behind."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader

from tfcluster_workers.preload import threads

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import TracebackType
    from typing import Any, Callable

    Packages = tuple[str, ...]
    """A package after those whose imports led to it: `("keras", "pandas", "pyarrow")`."""

_WATCHED: tuple[tuple[Any, str, str], ...] = (
    (SourceFileLoader, "exec_module", "__name__"),
    (ExtensionFileLoader, "create_module", "name"),  # loads the library, whose code may run
    (ExtensionFileLoader, "exec_module", "__name__"),
)
"""The methods that run a module's code, and what has the module's name in their argument."""


class ImportWatch:
    """A context that notes for each thread, socket, … which import it came with."""

    def __init__(self) -> None:
        self._running: list[str] = []
        """The packages whose code is running, the innermost last."""
        self._threads: dict[int, Packages] = {}
        self._files: dict[str, Packages] = {}
        self._file_count = -1
        self._operation: Packages = ()
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> ImportWatch:
        self._note()
        for loader, method, name in _WATCHED:
            original = getattr(loader, method)
            if method in vars(loader):
                self._undo.callback(setattr, loader, method, original)
            else:
                self._undo.callback(delattr, loader, method)
            setattr(loader, method, self._watched(original, name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()

    def _watched(self, run: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
        def watched(loader: Any, subject: Any) -> Any:
            package = getattr(subject, name).partition(".")[0]
            if self._running[-1:] == [package]:
                return run(loader, subject)
            self._note()
            self._running.append(package)
            try:
                return run(loader, subject)
            finally:
                self._note()
                self._running.pop()

        return watched

    def _note(self) -> None:
        """Give what is new to the running packages; this takes 20 µs, at each change of package."""
        packages = tuple(dict.fromkeys(self._running[::-1]))[::-1]
        names = map(int, os.listdir("/proc/self/task"))
        self._threads = {thread: self._threads.get(thread, packages) for thread in names}
        count = len(os.listdir("/proc/self/fd"))
        if count != self._file_count:
            self._file_count = count
            files = set(_open_files().values())
            self._files = {file: self._files.get(file, packages) for file in files}
        if not self._operation and _has_run_operation():
            self._operation = packages

    def hazards(self, agent_socket: int) -> Iterator[tuple[str, Packages]]:
        """Yield what forbids a fork of this process, as a verb and its object, and whose it is."""
        by_package: dict[Packages, list[str]] = {}
        for thread, name in threads.unsafe().items():
            by_package.setdefault(self._threads.get(thread, ()), []).append(name)
        for packages, names in by_package.items():
            named = ", ".join(sorted({*filter(None, names)}))
            count = "a thread" if len(names) == 1 else f"{len(names)} threads"
            yield f"started {count}" + (f" ({named})" if named else ""), packages
        for fd, file in _open_files().items():
            if fd != agent_socket:
                what = "a socket" if file.startswith("socket:") else "the GPU driver"
                yield f"opened {what}", self._files.get(file, ())
        if _has_run_operation():
            yield "run an operation of TensorFlow", self._operation


def _open_files() -> dict[int, str]:
    """Return this process's descriptors that a fork must not share."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith(("socket:", "/dev/nvidia")):
                found[fd] = target
    return found


def _has_run_operation() -> bool:
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    return getattr(context, "_context_handle", None) is not None


def explain(what: str, packages: Packages, needed: Collection[str]) -> str:
    """Return a sentence on a hazard with its fix; the job itself imports the packages `needed`."""
    off = "set runtime.preload to off, which saves the attempt"
    if not packages:
        where = "before or after the imports (a .pth file, sitecustomize, a timer)"
        return f"this Python has {what} {where}, so no task can be forked: {off}"
    package = packages[-1]
    chain = f" ({' → '.join(packages)})" if len(packages) > 1 else ""
    fix = off if package in needed else f"uninstall {package} if the job does not use it, or {off}"
    return f"the import of {package}{chain} has {what}, so no task can be forked: {fix}"
