"""Calls the function, or runs the notebook cell, that `tfcluster.functions` has put into a folder.

    python -m tfcluster_workers.function FOLDER

FOLDER is relative to the working directory. `call.pkl` in it is a dict of plain values, which every
Python reads; the user's own objects are bytes inside of it. `cloudpickle/` is the copy of the
package that wrote them, so it need not be installed here. The chief writes `value.pkl`.
"""

from __future__ import annotations

import linecache
import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tfcluster_workers import context
from tfcluster_workers.errors import CallError

CALL, VALUE = "call.pkl", "value.pkl"


def main(folder: str) -> None:
    """Call the function in `folder` with its arguments; the chief keeps what it returns.

    `__main__` is the module that the user's classes and cells belong to, not this one.
    """
    value_path = os.path.abspath(os.path.join(folder, VALUE))  # the function may change the folder
    try:
        with open(os.path.join(folder, CALL), "rb") as file:
            call = pickle.load(file)
    except FileNotFoundError:
        raise CallError(f"{folder} is gone: a function is kept only during its run") from None
    import_cloudpickle(folder)
    sys.argv[:] = [""]  # as in an interactive Python
    sys.path[:0] = [os.path.abspath(path) for path in call["path"]]
    add_sources(call["sources"])
    namespace = vars(sys.modules["__main__"])
    content = load(call)
    if "cell" in call:
        value = run_cell(call["cell"], content, namespace, call["pull"])
    else:
        function, args, kwargs = content
        value = function(*args, **kwargs)
    if is_chief():
        write(value_path, dump(value, call["max_bytes"]))


def import_cloudpickle(folder: str) -> None:
    """Import the copy in `folder`: other releases of cloudpickle may not read its pickles."""
    sys.path.insert(0, os.path.abspath(folder))
    import cloudpickle  # noqa: F401

    del sys.path[0]


def add_sources(sources: Mapping[str, str]) -> None:
    """Let tracebacks, `inspect` and AutoGraph find the source of code that has no file here."""
    for name, text in sources.items():
        # Without a time `linecache.checkcache` keeps the entry.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    # Unlike this function, the built-in hook of Python 3.12 and older reads only files.
    sys.excepthook = traceback.print_exception


def load(call: Mapping[str, Any]) -> Any:
    """Return the function and its arguments, or the variables of a cell. Raises CallError."""
    written_by = call["python"]
    if written_by is not None and tuple(written_by) != sys.version_info[:2]:
        raise CallError.of_other_python(written_by)
    try:
        return pickle.loads(call["content"])
    except ModuleNotFoundError as error:
        raise CallError.of_missing_module(error) from None
    except Exception as error:
        raise CallError.of_content(error) from error


def run_cell(
    name: str, variables: Mapping[str, Any], namespace: dict[str, Any], pull: Sequence[str]
) -> dict[str, Any]:
    """Run the source registered as `name` with `variables`; return the variables to `pull`."""
    namespace.update(variables)
    source = "".join(linecache.getlines(name))
    exec(compile(source, name, "exec", dont_inherit=True), namespace)
    if missing := [variable for variable in pull if variable not in namespace]:
        raise CallError(f"the cell does not define {', '.join(missing)} (--pull)")
    return {variable: namespace[variable] for variable in pull}


def is_chief() -> bool:
    """Return whether this task is the chief: `chief:0`, else `worker:0`, in plain jobs too."""
    task = os.environ.get("TFCLUSTER_TASK") or context.current().task
    return task == "chief:0" or (task == "worker:0" and not context.current().cluster.get("chief"))


def dump(value: Any, max_bytes: int) -> dict[str, Any]:
    """Return `value` pickled, or why that is impossible: the job's work must not be lost for it."""
    import cloudpickle

    try:
        content = cloudpickle.dumps(value)
    except Exception as error:
        kind = type(value)
        return _refused(f"{kind.__module__}.{kind.__qualname__} cannot be pickled: {error}")
    if len(content) > max_bytes:
        return _refused(f"{len(content):,} bytes are more than {max_bytes:,}")
    has_code = b"CodeType" in content  # cloudpickle's name for bytecode
    return {"python": sys.version_info[:2] if has_code else None, "content": content}


def _refused(reason: str) -> dict[str, Any]:
    sys.stderr.write(f"the value of the chief is not returned: {reason}\n")
    return {"error": reason}


def write(path: str, value: Mapping[str, Any]) -> None:
    """Replace the file at `path`; a task that is killed meanwhile leaves the old one."""
    with open(f"{path}.tmp", "wb") as file:
        pickle.dump(dict(value), file, protocol=4)
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":  # without boot: job.hooks is off
    from tfcluster_workers import function

    sys.modules["__main__"] = ModuleType("__main__")
    function.main(sys.argv[1])
