"""The source of a spec: a file, standard input, or tfcluster.json (.yaml …) in this folder."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent.error_text import reason_of
from tfcluster.errors import SpecError, similar_file
from tfcluster.spec import NOTEBOOK, PYTHON_ENDINGS, SPEC_NAMES, jsonc, run_name, templates
from tfcluster.spec.jsonc import Document, TextError, place_in

_ENDINGS = tuple(Path(name).suffix for name in SPEC_NAMES)
_TOML_TO_JSON = (
    "import json, sys, tomllib; json.dump(tomllib.load(sys.stdin.buffer), sys.stdout, indent=2)"
)
_PROGRAMS = {
    ".py": ("Python script", ""),
    NOTEBOOK: ("notebook", ""),
    ".sh": ("shell script", "--no-python "),
}
"""Ending of a program → what it is, and the option with which `tfcluster run` runs it."""
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SpecSource:
    """The text of a spec and its origin."""

    text: str
    name: str
    """The name as the user wrote it, for ``name:line:column``."""
    path: Path | None
    """The absolute path; None if there is no file."""
    folder: Path
    """The folder to which the spec's paths are relative."""
    has_places: bool = True
    """True if line and column mean anything to the user."""

    @property
    def form(self) -> str:
        """The format: the file's ending in lower case without its dot; json if it is another."""
        ending = self.path.suffix.lower() if self.path else ""
        return ending[1:] if ending in _ENDINGS else "json"

    @property
    def spec_name(self) -> str:
        """The run's name if the spec has none: the file's name, made fit for a folder name."""
        stem = self.path.stem if self.path else ("stdin" if self.has_places else self.name)
        return run_name(stem)

    def document(self) -> Document:
        """Read the text in its format; raises SpecError at its first syntax error."""
        if not self.text.strip():
            fix = "write a first spec with `tfcluster init`"
            raise SpecError.at(self.name, "the file is empty", fix)
        try:
            if self.form in ("yaml", "yml"):
                from tfcluster.spec import yaml_text  # takes 20 ms

                return yaml_text.read(self.text)
            return jsonc.read(self.text, comments=self.form == "jsonc")
        except TextError as error:
            raise SpecError.at(self.place(error.offset), error.message, error.fix) from None

    def place(self, offset: int) -> str:
        """Return ``file:line:column``, or the name alone if lines mean nothing to the user."""
        if not self.has_places:
            return self.name
        line, column = place_in(self.text, offset)
        return f"{self.name}:{line}:{column}"


def read_source(source: str | Path | None) -> SpecSource:
    """Read a spec file, ``-`` for standard input, None for `find_default`.

    Raises SpecError for a file that is missing, a folder, unreadable, too large or not UTF-8.
    """
    if source is None:
        source = find_default(Path.cwd())
    if str(source) == "-":
        return SpecSource(read_stdin("spec"), "<stdin>", None, Path.cwd())
    source = _find_by_name(str(source))
    path = Path(os.path.expanduser(source)).absolute()
    name = _printable(str(source))
    _refuse_program(path, name)
    _refuse_toml(path, name)
    fix_missing = "" if os.path.exists(path) else _fix_missing(path, name)
    return SpecSource(read_text(source, "spec", fix_missing), name, path, path.parent)


def _find_by_name(source: str) -> str:
    """Return the spec file that a name without a folder means; else `source` as it is.

    The name may lack its ending, and the file may be in ``cluster_specs/``: ``localhost-2w``.
    """
    if os.path.lexists(os.path.expanduser(source)) or os.path.dirname(source):
        return source
    names = [source] if source.endswith(_ENDINGS) else [source + ending for ending in _ENDINGS]
    paths = (os.path.join(folder, name) for folder in ("", templates.FOLDER) for name in names)
    files = [path for path in paths if os.path.isfile(path)]
    return files[0] if len(files) == 1 else source


def _refuse_program(path: Path, name: str) -> None:
    """Raise SpecError for a script: `tfcluster up train.py`."""
    if path.suffix not in _PROGRAMS or not os.path.isfile(path):
        return
    kind, option = _PROGRAMS[path.suffix]
    words = shlex.quote(name if "/" in name or not option else f"./{name}")
    fix = f"run it without a spec: tfcluster run -n 2 {option}{words}"
    if not option:
        fix += f"\n  → or write a spec for it: tfcluster init --script {words}"
    raise SpecError.at(name, f"this is a {kind}, not a spec", fix)


def _refuse_toml(path: Path, name: str) -> None:
    """Raise SpecError, with the command that makes JSON of it, for a spec in TOML."""
    if path.suffix == ".toml" and os.path.isfile(path):
        old, new = shlex.quote(name), shlex.quote(f"{name.removesuffix('.toml')}.json")
        fix = f"convert it to JSON: python3 -c '{_TOML_TO_JSON}' < {old} > {new}"
        raise SpecError.at(name, "a spec cannot be TOML, only JSON or YAML", fix)


def _fix_missing(path: Path, name: str) -> str:
    """Return what to do about a spec file that does not exist: a similar name, or a template."""
    fixes = []
    for folder in dict.fromkeys((os.path.dirname(name), templates.FOLDER)):
        names = _names_in(Path(os.path.expanduser(folder)))
        known = [entry for entry in names if entry.endswith((*_ENDINGS, *PYTHON_ENDINGS))]
        if near := similar_file(path.name, known):
            fixes.append(f"did you mean {os.path.join(folder, near)}?")
    if path.stem in templates.templates():
        fixes.append(f"to start from the template: tfcluster init --template {path.stem}")
    return "\n  → ".join(fixes) or "check the path; `tfcluster init` writes a first spec"


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def find_default(folder: Path) -> Path:
    """Return the file in `folder` that is called like one of `SPEC_NAMES`.

    Raises SpecError if there is none, or several.
    """
    names = _names_in(folder)
    specs = [name for name in SPEC_NAMES if name in names]
    if not specs and "tfcluster.toml" in names:
        specs = ["tfcluster.toml"]  # `_refuse_toml` says what to do
    if len(specs) == 1:
        return Path(specs[0])
    place = _printable(str(folder))
    if specs:
        message = f"this folder has {' and '.join(specs)}"
        raise SpecError.at(place, message, "name the file to use")
    scripts = [name for name in names if name.startswith("train") and name.endswith(PYTHON_ENDINGS)]
    fix = "name a spec file, or write a first one with `tfcluster init`"
    if scripts:
        fix += f"\n  → without a spec: tfcluster run -n 2 {shlex.quote(_printable(scripts[0]))}"
    message = f"no tfcluster.json ({', '.join(_ENDINGS[1:])}) in this folder"
    raise SpecError.at(place, message, fix)


def read_text(file: str | Path, kind: str, fix_missing: str) -> str:
    """Return the text of a `kind` file (spec, host). Raises SpecError, as `read_source` does."""
    name = _printable(str(file))
    path = Path(os.path.expanduser(file))
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            message = f"this is a folder, not a {kind} file"
            inside = [entry for entry in SPEC_NAMES if (path / entry).exists()]
            example = f": {os.path.join(name, inside[0])}" if inside and kind == "spec" else ""
            raise SpecError.at(name, message, f"name the {kind} file in it{example}")
        with path.open("rb") as reader:
            return _decode(reader.read(MAX_BYTES + 1), name, kind)
    except FileNotFoundError:
        raise SpecError.at(name, "no such file", fix_missing) from None
    except OSError as error:
        fix = "check the path and its permissions"
        raise SpecError.at(name, f"cannot be read: {reason_of(error)}", fix) from None
    except ValueError:
        raise SpecError.at(name, "not a valid path", "check the path") from None


def read_stdin(kind: str) -> str:
    """Return the text of a `kind` file from standard input. Raises SpecError."""
    if sys.stdin is None:
        raise SpecError.at("<stdin>", "standard input is closed", f"name a {kind} file")
    return _decode(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>", kind)


def _decode(data: bytes, name: str, kind: str) -> str:
    if len(data) > MAX_BYTES:
        message = f"larger than {MAX_BYTES // 1024**2} MiB"
        raise SpecError.at(name, message, f"check that this is a {kind} file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        line, column = place_in(before, len(before))
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        place = f"{name}:{line}:{column}"
        raise SpecError.at(place, message, "save the file as UTF-8") from None


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
