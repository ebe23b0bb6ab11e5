"""Find the Python of the tasks and what is installed in it, without importing any of that."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tfcluster.errors import InterpreterError
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
sys.path[:] = [folder for folder in sys.path if folder]
import importlib.metadata as m, importlib.util as u, json, platform
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
if u.find_spec("tensorflow") and not any(n.startswith(("tensorflow-", "tf-n")) for n in found):
    found.setdefault("tensorflow", "unknown")
version = platform.python_version()
print(json.dumps({"version": version, "packages": found, "executable": sys.executable}))
"""

ON_PATH: Final = "python3 on PATH"
_DIST_INFO: Final = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")


def choose(
    explicit: str | None,
    explicit_why: str,
    *,
    base: Path,
    workdir: Path,
    environ: Mapping[str, str] = os.environ,
) -> Interpreter:
    """The first Python of the contract's order that exists, with its versions.

    `explicit` is what was asked for, as a file, the folder of an environment, or a name on PATH;
    relative to `base`. Raises InterpreterError when that one does not exist or does not start.
    """
    if explicit:
        path = _asked_for(explicit, explicit_why, base, environ)
        return read(path, explicit_why, environ=environ, cwd=workdir)
    path, why = next(_candidates(workdir, environ))
    return read(path, why, environ=environ, cwd=workdir)


def read(
    path: str, why: str, *, environ: Mapping[str, str] = os.environ, cwd: Path = Path("/")
) -> Interpreter:
    """Versions from the folders of a virtual environment; any other Python is asked itself."""
    seen = _read_venv(Path(path))
    if seen is not None and "tensorflow" in seen[1]:
        return Interpreter(path, why, *seen)
    answer = _ask(path, environ, cwd)
    if why == ON_PATH:
        # A shim of a version manager answers differently in another folder: take what it chose.
        path = str(answer["executable"]) or path
    return Interpreter(path, why, str(answer["version"]), _known(answer["packages"]))


def _asked_for(python: str, why: str, base: Path, environ: Mapping[str, str]) -> str:
    if "/" not in python and (found := shutil.which(python, path=environ.get("PATH"))):
        return found
    path = Path(python).expanduser()
    for candidate in (path, path / "bin" / "python"):
        absolute = base / candidate
        if absolute.is_file() and os.access(absolute, os.X_OK):
            return os.path.abspath(absolute)
    cure = "name a Python, or the folder of a virtual environment: --python PATH"
    where = os.path.abspath(base / path) if "/" in python else python
    raise InterpreterError(f"there is no Python at {where} ({why})", cure=cure)


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
    matches = (_DIST_INFO.fullmatch(name) for name in names)
    return _known({m["name"]: m["version"] for m in matches if m})


def _known(versions: Mapping[str, str]) -> dict[str, str]:
    normal = {re.sub(r"[-_.]+", "-", n).lower(): v for n, v in versions.items()}
    return dict(sorted((_PACKAGES[n], v) for n, v in normal.items() if n in _PACKAGES))


def _ask(path: str, environ: Mapping[str, str], cwd: Path) -> dict[str, Any]:
    try:
        result = subprocess.run(
            [path, "-c", _PROBE, *_PACKAGES],
            env=dict(environ),
            cwd=cwd if cwd.is_dir() else "/",
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise InterpreterError(f"{path} does not work as Python: {last}", cure=_CURE) from error
    except (ValueError, IndexError) as error:
        message = f"{path} does not work as Python: it did not answer as one"
        raise InterpreterError(message, cure=_CURE) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InterpreterError(f"{path} does not work as Python: {error}", cure=_CURE) from error
    return answer


_CURE: Final = "choose another one with --python PATH"
