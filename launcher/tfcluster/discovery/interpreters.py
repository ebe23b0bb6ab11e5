"""Find the Python of the tasks and what is installed in it, without importing any of that."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tfcluster.agent.error_text import describe_error
from tfcluster.errors import InterpreterError, UsageError
from tfcluster.plan.plan import Interpreter

_PACKAGES: Final = {
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "tensorflow-rocm": "tensorflow",
    "tensorflow-macos": "tensorflow",
    "tensorflow-intel": "tensorflow",
    "tf-nightly": "tensorflow",
    "tf-nightly-cpu": "tensorflow",
    "keras": "keras",
    "tf-keras": "tf-keras",
    "tensorflow-estimator": "tensorflow-estimator",
    "tensorflow-datasets": "tensorflow-datasets",
    "numpy": "numpy",
    "protobuf": "protobuf",
}
"""Distribution → the name under which a plan knows it."""

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
has_tensorflow = importlib.util.find_spec("tensorflow") is not None
print(ascii((sys.executable, sys.version.split()[0], has_tensorflow, names)))
"""
"""`importlib.metadata` would tell the same, and takes three times as long as all of this."""

_ANSWER_S: Final = 30.0
NAME_ONE: Final = "name a Python, or the folder of a virtual environment: --python PATH"
ON_PATH: Final = "python3 on PATH"
_INSTALLED: Final = re.compile(
    r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info"  # egg: of Debian's own
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A Python that may still be busy telling what it is."""

    result: Callable[[], Interpreter]
    """Waits for that; to be called once. Raises InterpreterError where it is no sound Python."""


def known(interpreter: Interpreter) -> Choice:
    """One of which nothing is to be asked."""
    return Choice(lambda: interpreter)


def choose(
    explicit: str | None,
    explicit_why: str,
    *,
    base: Path,
    workdir: Path,
    environ: Mapping[str, str] = os.environ,
) -> Choice:
    """The first Python of the contract's order that exists, with its versions.

    `explicit` is what was asked for, see `find`. Raises UsageError when that one does not exist.
    """
    if explicit:
        path = find(explicit, base, environ)
        if path is None:
            raise UsageError(f"{not_there(explicit, base)} ({explicit_why})", fix=NAME_ONE)
        return read(path, explicit_why, environ=environ, cwd=workdir)
    path, why = next(_candidates(workdir, environ))
    return read(path, why, environ=environ, cwd=workdir)


def read(
    path: str, why: str, *, environ: Mapping[str, str] = os.environ, cwd: Path = Path("/")
) -> Choice:
    """Versions from the folders of a virtual environment; any other Python is asked itself, which
    takes a tenth of a second where a version manager stands before it."""
    seen = _read_venv(Path(path))
    if seen is not None and "tensorflow" in seen[1]:
        return known(Interpreter(path, why, *seen))
    asked = _ask(path, environ, cwd)
    return Choice(lambda: _answer(asked, path, why))


def find(python: str, base: Path, environ: Mapping[str, str]) -> str | None:
    """The path of a Python that was asked for: a file or the folder of an environment, relative to
    `base`, or a name on PATH. None where it does not exist."""
    if "/" not in python and (found := shutil.which(python, path=environ.get("PATH"))):
        return found
    path = Path(os.path.expanduser(python))  # `Path` raises for unknown users
    for candidate in (path, path / "bin" / "python"):
        absolute = base / candidate
        if os.path.isfile(absolute) and os.access(absolute, os.X_OK):
            return os.path.abspath(absolute)
    return None


def not_there(python: str, base: Path) -> str:
    """The sentence about one that `find` does not find."""
    if "/" not in python:
        return f"there is no {python} on PATH, and no such file in {base}"
    return f"there is no Python at {os.path.abspath(base / os.path.expanduser(python))}"


def _candidates(workdir: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if (prefix := environ.get(name)) and (found := _python_in(Path(prefix))):
            yield found, f"${name}"
    for folder in (workdir, *workdir.parents):
        if found := _python_in(folder / ".venv"):
            place = "in" if folder == workdir else "above"
            yield found, f".venv {place} the workdir"
    if on_path := shutil.which("python3", path=environ.get("PATH")):
        yield on_path, ON_PATH
    yield sys.executable, "the Python of tfcluster itself"


def _python_in(prefix: Path) -> str | None:
    python = prefix / "bin" / "python"
    return str(python) if os.access(python, os.X_OK) else None


def _read_venv(python: Path) -> tuple[str, dict[str, str]] | None:
    """(version, packages) of a virtual environment; None where only Python itself can tell."""
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
    return version, _installed(prefix / "lib" / f"python{short}" / "site-packages")


def _installed(site_packages: Path) -> dict[str, str]:
    try:
        names = os.listdir(site_packages)
    except OSError:
        return {}
    return _known(names)


def _known(names: Iterable[str]) -> dict[str, str]:
    """Package → version from the `names` of metadata folders; of several the first counts."""
    matches = [match for name in names if (match := _INSTALLED.fullmatch(name))]
    normal = {re.sub(r"[-_.]+", "-", m["name"]).lower(): m["version"] for m in matches[::-1]}
    return dict(sorted((_PACKAGES[n], v) for n, v in normal.items() if n in _PACKAGES))


def _ask(path: str, environ: Mapping[str, str], cwd: Path) -> subprocess.Popen[str]:
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
        raise InterpreterError(
            f"{path} does not work as Python: {describe_error(error)}", fix=_CURE
        ) from error


def _answer(asked: subprocess.Popen[str], path: str, why: str) -> Interpreter:
    with asked:
        try:
            out, errors = asked.communicate(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired as error:
            asked.kill()
            message = f"{path} does not work as Python: {describe_error(error)}"
            raise InterpreterError(message, fix=_CURE) from error
    if asked.returncode:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        raise InterpreterError(f"{path} does not work as Python: {last}", fix=_CURE)
    try:
        executable, version, has_tensorflow, names = ast.literal_eval(out.splitlines()[-1])
    except (ValueError, TypeError, IndexError, SyntaxError) as error:
        message = f"{path} does not work as Python: it did not answer as one"
        raise InterpreterError(message, fix=_CURE) from error
    packages = _known(names)
    if has_tensorflow:
        packages.setdefault("tensorflow", "unknown")
    # A shim of a version manager answers differently in another folder: take what it chose.
    chosen = (executable if why == ON_PATH else None) or path
    return Interpreter(chosen, why, version, packages)


_CURE: Final = "choose another one with --python PATH"
