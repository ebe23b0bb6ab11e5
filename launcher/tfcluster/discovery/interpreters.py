"""Find the Python of the tasks and its installed packages, without importing them."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from tfcluster.agent.error_text import describe_error
from tfcluster.errors import InterpreterError, UsageError
from tfcluster.plans.plan import Interpreter, name_packages

_PACKAGES: Final = {
    **dict.fromkeys(
        (
            *("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm"),
            *("tensorflow-macos", "tensorflow-intel", "tf-nightly", "tf-nightly-cpu"),
        ),
        "tensorflow",
    ),
    "jax": "jax",
    "torch": "torch",
    "keras": "keras",
    "keras-nightly": "keras",  # what tf-nightly and candidates of TensorFlow install
    "tf-keras": "tf-keras",
    "tensorflow-estimator": "tensorflow-estimator",
    "tensorflow-datasets": "tensorflow-datasets",
    "numpy": "numpy",
    "protobuf": "protobuf",
    "mlflow": "mlflow",
    "mlflow-skinny": "mlflow",
    "wandb": "wandb",
}
"""Distribution → package name in a plan; the last one that is installed gives the version.

The files of keras-nightly replace those of keras, which a released TensorFlow installs as well.
"""

_PROBE: Final = """
import sys
sys.version_info[0] > 2 or sys.exit("it is Python " + sys.version.split()[0])
sys.path[:] = [folder for folder in sys.path if folder]
import importlib.util, os
names = []
for folder in sys.path:
    try:
        names += [name for name in os.listdir(folder) if name.endswith("-info")]
    except OSError:
        pass
libraries = "tensorflow", "jax", "torch", "keras"
specs = map(importlib.util.find_spec, libraries)
found = [spec.name for spec in specs if spec and spec.origin]  # not a folder of that name
print(ascii((sys.executable, sys.version.split()[0], found, names)))
"""
"""`importlib.metadata` would give the same, but takes three times as long as all of this."""

_ANSWER_S: Final = 30.0
_MESSAGE: Final = 200
"""The characters that are shown of the last line of a program that is no Python: it may repeat
`_PROBE`."""
NAME_ONE: Final = (
    "give a Python, or the folder of a virtual environment: --python PATH (python=PATH)"
)
_INSTALLED: Final = re.compile(
    r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info"  # egg: Debian's packages
)


class Reason(StrEnum):
    """The reasons for a Python of the tasks on which other choices depend."""

    ON_PATH = "python3 on PATH"
    """The first one, which nothing chose."""
    CALLING = "the Python that called tfcluster"
    """That of local tasks in a run of the Python API."""


Choice = Callable[[], Interpreter]
"""A Python whose version and packages may still be being read: the call, once, waits for them.

It raises InterpreterError if the Python does not work."""


def choose(
    explicit: str | None,
    explicit_why: str,
    *,
    base: Path,
    workdir: Path,
    environ: Mapping[str, str] = os.environ,
) -> Choice:
    """Choose the first Python of the contract's order that exists.

    `explicit`: the one that was requested, see `find`; `explicit_why`: the option or field that
    requested it. Raises UsageError if that one does not exist.
    """
    if explicit:
        path = find(explicit, base, environ)
        if path is None:
            raise UsageError(f"{missing_message(explicit, base)} ({explicit_why})", fix=NAME_ONE)
        return read(path, explicit_why, environ=environ, cwd=workdir)
    path, why, may_be_shim = next(_candidates(workdir, environ))
    return read(path, why, environ=environ, cwd=workdir, may_be_shim=may_be_shim)


def read(
    path: str,
    why: str,
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path = Path("/"),
    may_be_shim: bool = False,
) -> Choice:
    """Read a Python's version and packages.

    Those of a virtual environment are read from its folders. Any other Python is run, which takes
    a tenth of a second behind a version manager's shim. `may_be_shim`: return the Python that the
    shim has chosen, because it may choose another one in another folder.
    """
    venv = _read_venv(Path(path))
    if venv is not None and "tensorflow" in venv[1]:
        return lambda: Interpreter(path, why, *venv)
    process = _start_probe(path, environ, cwd)
    return lambda: _read_probe(process, path, why, may_be_shim)


def own_instead(
    python: Interpreter, needs: Sequence[str], *, environ: Mapping[str, str], cwd: Path
) -> Interpreter:
    """Return tfcluster's own Python if it has the packages `needs` and the one on PATH does not.

    Only for a Python that nothing chose; any other is returned as it is.
    """
    is_unchosen = python.why is Reason.ON_PATH and python.path != sys.executable
    if not is_unchosen or not (missing := [name for name in needs if name not in python.packages]):
        return python
    why = f"tfcluster's own: {Reason.ON_PATH} has no {name_packages(missing)}"
    try:
        own = read(sys.executable, why, environ=environ, cwd=cwd)()
    except InterpreterError:
        return python
    return own if own.packages.keys() >= set(needs) else python


def find(python: str, base: Path, environ: Mapping[str, str]) -> str | None:
    """Return the path of a requested Python, or None if it does not exist.

    `python`: a file or the folder of a virtual environment, relative to `base`, or a name on PATH.
    """
    if "/" not in python and (on_path := shutil.which(python, path=environ.get("PATH"))):
        return on_path
    path = Path(os.path.expanduser(python))  # `Path` raises for unknown users
    for candidate in (path, path / "bin" / "python"):
        absolute = base / candidate
        if os.path.isfile(absolute) and os.access(absolute, os.X_OK):
            return os.path.abspath(absolute)
    return None


def missing_message(python: str, base: Path) -> str:
    """Return the message for a Python that `find` does not find."""
    if "/" not in python:
        return f"there is no {python} on PATH, and no such file in {base}"
    return f"there is no Python at {os.path.abspath(base / os.path.expanduser(python))}"


def _candidates(workdir: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if (prefix := environ.get(name)) and (python := _python_in(Path(prefix))):
            yield python, f"${name}", False
    for folder in (workdir, *workdir.parents):
        if python := _python_in(folder / ".venv"):
            place = "in" if folder == workdir else "above"
            yield python, f".venv {place} the workdir", False
    if on_path := shutil.which("python3", path=environ.get("PATH")):
        yield on_path, Reason.ON_PATH, True
    yield sys.executable, "the Python of tfcluster itself", False


def _python_in(prefix: Path) -> str | None:
    python = prefix / "bin" / "python"
    return str(python) if os.access(python, os.X_OK) else None


def _read_venv(python: Path) -> tuple[str, dict[str, str]] | None:
    """Return version and packages of a virtual environment; None if Python must be run for them."""
    prefix = python.parent.parent
    try:
        lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    config = {k.strip(): v.strip() for k, _, v in (line.partition("=") for line in lines)}
    version = config.get("version") or config.get("version_info")
    if version is None or config.get("include-system-site-packages", "").lower() == "true":
        return None
    short = ".".join(version.split(".")[:2])
    try:
        return version, _known(os.listdir(prefix / "lib" / f"python{short}" / "site-packages"))
    except OSError:
        return version, {}


def _known(names: Iterable[str]) -> dict[str, str]:
    """Return package → version from the `names` of metadata folders; the first of several wins."""
    matches = [match for name in names if (match := _INSTALLED.fullmatch(name))]
    normal = {re.sub(r"[-_.]+", "-", m["name"]).lower(): m["version"] for m in matches[::-1]}
    versions = {package: normal[name] for name, package in _PACKAGES.items() if name in normal}
    return dict(sorted(versions.items()))


def _start_probe(path: str, environ: Mapping[str, str], cwd: Path) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            [path, "-c", _PROBE],
            env=dict(environ),
            cwd=cwd if os.path.isdir(cwd) else "/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise _not_working(path, describe_error(error)) from error


def _read_probe(
    process: subprocess.Popen[str], path: str, why: str, may_be_shim: bool
) -> Interpreter:
    with process:
        try:
            out, errors = process.communicate(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise _not_working(path, describe_error(error)) from error
    if process.returncode:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        raise _not_working(path, last if len(last) <= _MESSAGE else f"{last[:_MESSAGE]}…")
    try:
        executable, version, found, names = ast.literal_eval(out.splitlines()[-1])
    except (ValueError, TypeError, IndexError, SyntaxError) as error:
        raise _not_working(path, "unexpected output") from error
    packages = dict.fromkeys(found, "unknown") | _known(names)
    return Interpreter((may_be_shim and executable) or path, why, version, packages)


def _not_working(path: str, reason: str) -> InterpreterError:
    fix = "choose another Python: --python PATH (python=PATH)"
    return InterpreterError(f"{path} does not work as Python: {reason}", fix=fix)
