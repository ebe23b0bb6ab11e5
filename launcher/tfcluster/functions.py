"""Functions and notebook cells as jobs: what a task needs is put into a folder of the workdir.

The folder, ``.tfcluster/function-…``, exists only while its run does; the next one and the clean-up
after a lost run remove what a killed process has left. Local tasks read it where it
is; other machines get it with the copy of the workdir. The chief's value comes back as an output of
the run. `tfcluster_workers.function` is the other side.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import linecache
import pickle
import re
import secrets
import shutil
import sys
import textwrap
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tfcluster.agent import budgets, foreign_json
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.errors import FunctionError, InterpreterError
from tfcluster.plans.command import FUNCTION_CODE, FUNCTION_FOLDER, FUNCTION_MODULE
from tfcluster.rundir.registry import ProcessIdentity, this_process
from tfcluster.typed_json import from_json, to_json

if TYPE_CHECKING:
    from tfcluster.plans.plan import Plan
    from tfcluster.rundir.paths import RunPaths
    from tfcluster.spec.load import LoadedSpec

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_CALL, _VALUE, _OWNER = "call.pkl", "value.pkl", "owner.json"
_PYTHON: Final = sys.version_info[:2]
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Package:
    """A function or cell in its folder, and what a spec says to run it."""

    name: str
    folder: str
    """Relative to the working directory of the tasks, which is the present one."""
    is_bytecode: bool
    """True if it holds code that only Pythons of the same minor version load."""

    def spec(self) -> dict[str, Any]:
        """Return the spec without its cluster and the package's files, see `added_to`."""
        return {
            "name": self.name,
            "job": {"module": FUNCTION_MODULE, "args": [self.folder]},
            "supervision": {"max_restarts": 0},
        }

    def added_to(self, loaded: LoadedSpec) -> LoadedSpec:
        """Return the spec with the package's files besides those that the user lists."""
        spec = loaded.spec
        include = (*spec.job.include, self.folder)
        outputs = (*spec.checkpoints.outputs, f"{self.folder}/{_VALUE}")
        changed = {
            "job": spec.job.model_copy(update={"include": include}),
            "checkpoints": spec.checkpoints.model_copy(update={"outputs": outputs}),
        }
        return replace(loaded, spec=spec.model_copy(update=changed))

    def require_same_python(self, plan: Plan) -> None:
        """Raise InterpreterError (exit 3) for a Python of the tasks that cannot load the code.

        The versions of other machines are not known yet; their tasks check it.
        """
        own = ".".join(map(str, _PYTHON))
        for python in [node.interpreter for node in plan.nodes if self.is_bytecode]:
            if python and python.version and not f"{python.version}.".startswith(f"{own}."):
                raise InterpreterError(
                    f"a function of Python {own} cannot run in Python {python.version}:"
                    f" bytecode loads only in the same minor version ({python.path}, {python.why})",
                    fix=f"choose a Python {own} for the tasks: python=PATH",
                )


@contextlib.contextmanager
def package(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = _NOTHING,
    *,
    name: str | None = None,
) -> Iterator[Package]:
    """Put `function` and its arguments into a folder, which is removed at the end.

    Objects of `__main__`, so of a script or a notebook, travel with their code; objects of modules
    are imported by the task. Raises FunctionError for what cannot be pickled or is too large, and
    for a function that a call does not run.
    """
    own_name = getattr(function, "__name__", type(function).__name__)
    _require_plain(function, own_name)
    parts = {f"the function {own_name}": function}
    parts |= {f"args[{index}]": arg for index, arg in enumerate(args)}
    parts |= {f"kwargs[{key!r}]": arg for key, arg in kwargs.items()}
    pickled = _dump(parts, (function, tuple(args), dict(kwargs)))
    with _placed({}, pickled, name or own_name) as placed:
        yield placed


def _require_plain(function: Callable[..., Any], name: str) -> None:
    """Raise FunctionError for an async or generator function, whose call runs none of its code."""
    called = (function, type(function).__call__)
    if any(map(inspect.iscoroutinefunction, called)):
        kind, fix = "an async function", "asyncio.run"
    elif any(map(inspect.isgeneratorfunction, called)):
        kind, fix = "a generator", "list"
    elif any(map(inspect.isasyncgenfunction, called)):
        kind, fix = "an async generator", "asyncio.run"
    else:
        return
    raise FunctionError(
        f"{name} is {kind}: calling it does not run it",
        fix=f"pass a function that runs it, for example with {fix}(…), and returns a value",
    )


@contextlib.contextmanager
def package_cell(
    source: str,
    *,
    name: str,
    push: Mapping[str, Any] = _NOTHING,
    pull: Sequence[str] = (),
) -> Iterator[Package]:
    """Put the source of a cell and the variables to `push` into a folder, like `package`.

    `name`: what tracebacks call it; `pull`: the variables whose values the chief returns.
    """
    pickled = _dump(push, dict(push))
    pickled.sources[name] = source
    pickled.code.append(source)
    with _placed({"cell": name, "pull": list(pull)}, pickled, "cell") as placed:
        yield placed


def value(paths: RunPaths) -> Any:
    """Return what the chief's function returned. Raises FunctionError.

    The value is unpickled: the task that wrote it decides which code that runs here.
    """
    file = next(paths.outputs.glob(f"{FUNCTION_FOLDER}*/{_VALUE}"), None)
    if file is None:
        fix = f"see `tfcluster status {paths.run_id}`"
        raise FunctionError(f"{paths.run_id} has no value of the chief", fix=fix)
    record = pickle.loads(file.read_bytes())
    if "error" in record:
        fix = "return plain values, or save files into TFCLUSTER_CHECKPOINT_DIR"
        raise FunctionError(f"the chief returned no value: {record['error']}", fix=fix)
    if record["python"] is not None and tuple(record["python"]) != _PYTHON:
        raise FunctionError(
            "the value holds code of Python {}.{}".format(*record["python"]),
            fix="return plain values, or run the tasks with this Python",
        )
    try:
        return pickle.loads(record["content"])
    except Exception as error:
        message = f"the chief's value cannot be read: {describe_error(error)}"
        raise FunctionError(message, fix="install here what it is made of") from error


@dataclass(slots=True)
class _Pickled:
    content: bytes
    sources: dict[str, str]
    """Name in tracebacks → source of the code that travels."""
    code: list[str]
    """Python that shows what the code imports and uses."""
    is_bytecode: bool


def _dump(parts: Mapping[str, Any], whole: Any) -> _Pickled:
    """Pickle `whole`; errors name the one of its `parts` that is to blame."""
    try:
        pickled = _pickle(whole)
    except Exception as error:
        blamed = next(filter(lambda name: not _can_pickle(parts[name]), parts), "the call")
        message = f"{blamed} cannot be pickled: {describe_error(error)}"
        fix = "create it inside of the function, or pass a path or plain values"
        raise FunctionError(message, fix=fix) from error
    if (size := len(pickled.content)) > budgets.FUNCTION_BYTES:
        largest = max(parts, key=lambda name: len(_pickle(parts[name]).content))
        raise FunctionError(
            f"the call takes {size // _MIB} MiB, most of it {largest}; at most"
            f" {budgets.FUNCTION_BYTES // _MIB} MiB are sent",
            fix="save the data to a file and pass its path",
        )
    return pickled


def _can_pickle(value: Any) -> bool:
    with contextlib.suppress(Exception):
        _pickle(value)
        return True
    return False


def _pickle(value: Any) -> _Pickled:
    """Pickle `value` with cloudpickle, and collect the source of the code in it."""
    import cloudpickle

    stream, codes, modules = io.BytesIO(), dict[CodeType, str](), set[str]()
    inherited = cloudpickle.Pickler.dispatch_table

    def reduce_code(code: CodeType) -> Any:
        codes[code] = name_in_tracebacks(code.co_filename)
        return inherited[CodeType](code.replace(co_filename=codes[code]))

    def reduce_module(module: ModuleType) -> Any:
        modules.add(module.__name__)
        return inherited[ModuleType](module)

    own = {CodeType: reduce_code, ModuleType: reduce_module}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(own, inherited)

    Pickler(stream).dump(value)
    texts = {name: "".join(linecache.getlines(code.co_filename)) for code, name in codes.items()}
    code = [f"import {name}" for name in sorted(modules)]
    code += filter(None, map(_source_of, codes))
    return _Pickled(stream.getvalue(), texts, code, bool(codes))


def name_in_tracebacks(file: str) -> str:
    """Return ``Cell In[3]`` for the code of a notebook's cell, as IPython does."""
    compiler = getattr(ipython_shell(), "compile", None)
    words = getattr(compiler, "format_code_name", lambda _: None)(file)  # since IPython 8
    return " ".join(words) if words else file


def ipython_shell() -> Any:
    """Return the shell of the notebook or terminal that this process serves; None without one."""
    ipython = sys.modules.get("IPython")  # a program without it must not import it
    return ipython and ipython.get_ipython()


def _source_of(code: CodeType) -> str:
    """Return the source of a function; empty for one within another, and if it is not known."""
    if "<locals>" in code.co_qualname:
        return ""
    try:
        source = textwrap.dedent(inspect.getsource(code))
        ast.parse(source)
    except (OSError, TypeError, SyntaxError):  # such as a lambda within a longer statement
        return ""
    return source


@contextlib.contextmanager
def _placed(call: Mapping[str, Any], pickled: _Pickled, name: str) -> Iterator[Package]:
    workdir, folder = Path.cwd(), f"{FUNCTION_FOLDER}{secrets.token_hex(4)}"
    named = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "function"
    content = {
        **call,
        "content": pickled.content,
        "python": _PYTHON if pickled.is_bytecode else None,
        "sources": pickled.sources,
        "path": _script_folder(workdir),
        "max_bytes": budgets.FUNCTION_BYTES,
    }
    try:
        _remove_abandoned(workdir)
        _write(workdir / folder, content, "\n".join(pickled.code))
        yield Package(named, folder, pickled.is_bytecode)
    finally:
        shutil.rmtree(workdir / folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in it
            (workdir / folder).parent.rmdir()


def _script_folder(workdir: Path) -> list[str]:
    """Return the running script's folder, relative to `workdir` if it is below that.

    Other machines have only what is below it. Python's own folders may be first in `sys.path` too.
    """
    folder = Path(sys.path[0] or workdir).absolute()
    if folder == workdir:
        return []
    if folder.is_relative_to(workdir):
        return [folder.relative_to(workdir).as_posix()]
    script = getattr(sys.modules["__main__"], "__file__", None) or ""
    return [str(folder)] if Path(script).resolve().parent == folder else []


def _remove_abandoned(workdir: Path) -> None:
    """Remove the packages of processes that were killed, with the arguments in them."""
    for file in workdir.glob(f"{FUNCTION_FOLDER}*/{_OWNER}"):
        with contextlib.suppress(OSError, ValueError):
            owner = from_json(ProcessIdentity, foreign_json.read_json_object(file))
            if owner.is_alive() is False:
                shutil.rmtree(file.parent)


def _write(folder: Path, content: Mapping[str, Any], code: str) -> None:
    """Write the files of a package. Raises FunctionError."""
    import cloudpickle

    nothing = {"error": "its function has not returned"}
    try:
        folder.mkdir(parents=True, mode=0o700)
        (folder / _OWNER).write_text(json.dumps(to_json(this_process())))
        (folder / ".gitignore").write_text("*\n")  # other runs do not copy it
        (folder / _CALL).write_bytes(pickle.dumps(dict(content), protocol=4))
        (folder / _VALUE).write_bytes(pickle.dumps(nothing, protocol=4))
        (folder / FUNCTION_CODE).write_text(code, encoding="utf-8")
        source = Path(cloudpickle.__file__).parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder / source.name, ignore=ignored)
    except OSError as error:
        raise FunctionError(
            f"the function cannot be written to {folder}: {reason_of(error)}",
            fix="choose a working directory that can be written",
        ) from error
