"""Print the files of the launcher that a local `up` touches before it orders the first start.

`.venv/bin/python -m tools.touched_files SPEC` runs `tfcluster up SPEC` in this process. After the
run it prints each file of which a function was called, in this order, with the number of functions
and the first one. Imports do not count, nor do other processes (agents, guards, the probe of the
tasks' Python). Threads do, so the count may differ by a few files from run to run.
"""

import inspect
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import tfcluster
from tfcluster.agent.catalogue import Start
from tfcluster.cli.main import main
from tfcluster.nodes.hub import Hub

ROOT = str(Path(tfcluster.__file__).parent) + os.sep


class Touched:
    """The functions of the launcher that were called, by file, in the order of the first calls."""

    def __init__(self) -> None:
        self.by_file: dict[str, list[str]] = {}
        self._seen: set[CodeType] = set()
        self._has_ended = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call, up to the order that starts the first tasks; for `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or self._has_ended:
            return
        if code is Hub.send.__code__ and isinstance(frame.f_locals["order"], Start):
            self._has_ended = True
        if code in self._seen or not code.co_filename.startswith(ROOT):
            return
        self._seen.add(code)
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class
        if is_function and not _is_importing(frame):
            functions = self.by_file.setdefault(code.co_filename.removeprefix(ROOT), [])
            functions.append(code.co_qualname)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a module's body is being run, which calls decorators, for example."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(ROOT):
            return True
        frame = frame.f_back
    return False


def run() -> None:
    """Run `up` with the arguments of this command, then print what it touched."""
    touched = Touched()
    sys.argv[:1] = ["tfcluster", "up"]
    threading.setprofile(touched)
    sys.setprofile(touched)
    try:
        main()
    finally:
        sys.setprofile(None)
        for file, functions in touched.by_file.items():
            sys.stdout.write(f"{file:44} {len(functions):3}  {functions[0]}\n")
        sys.stdout.write(f"{len(touched.by_file)} files\n")


if __name__ == "__main__":
    run()
