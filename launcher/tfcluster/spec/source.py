"""The source of a spec: a file, standard input, or tfcluster.json in the working directory."""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent.error_text import reason_of
from tfcluster.errors import Problem, SpecError
from tfcluster.spec.jsonc import Lines

DEFAULTS = ("tfcluster.json", "tfcluster.jsonc")
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
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
    def has_comments(self) -> bool:
        return self.path is not None and self.path.suffix.lower() == ".jsonc"

    @property
    def spec_name(self) -> str:
        """The run's name if the spec has none: the file's name, made fit for a folder name."""
        stem = self.path.stem if self.path else ("stdin" if self.has_places else self.name)
        return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:63] or "tfcluster"

    def place(self, line_and_column: tuple[int, int]) -> str:
        """Return ``file:line:column``, or the name alone if lines mean nothing to the user."""
        if not self.has_places:
            return self.name
        return f"{self.name}:{line_and_column[0]}:{line_and_column[1]}"


def read_source(source: str | Path | None) -> Source:
    """Read a spec file, ``-`` for standard input, None for `find_default`.

    Raises SpecError for a file that is missing, a folder, unreadable, too large or not UTF-8.
    """
    if source is None:
        source = find_default(Path.cwd())
    if str(source) == "-":
        return Source(_decode(_read_stdin(), "<stdin>", "spec"), "<stdin>", None, Path.cwd())
    path = Path(os.path.expanduser(source)).absolute()
    text = read_text(source, "spec", "check the path; `tfcluster init` writes a first spec")
    return Source(text, _printable(str(source)), path, path.parent)


def find_default(folder: Path) -> Path:
    """Return ``tfcluster.json`` or ``tfcluster.jsonc`` of `folder`.

    Raises SpecError if there is none, or both.
    """
    found = [Path(name) for name in DEFAULTS if (folder / name).exists()]
    if len(found) == 1:
        return found[0]
    place = _printable(str(folder))
    if found:
        message = f"this folder has both {' and '.join(DEFAULTS)}"
        raise SpecError([Problem(place, message, "name the file to use")])
    fix = "name a spec file, or write a first one with `tfcluster init`"
    raise SpecError([Problem(place, f"no {' or '.join(DEFAULTS)} in this folder", fix)])


def read_text(file: str | Path, what: str, fix_missing: str) -> str:
    """Return the text of a `what` file (spec, host). Raises SpecError, as `read_source` does."""
    name = _printable(str(file))
    path = Path(os.path.expanduser(file))
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            message = f"this is a folder, not a {what} file"
            raise SpecError([Problem(name, message, f"name the {what} file in it")])
        with path.open("rb") as reader:
            return _decode(reader.read(MAX_BYTES + 1), name, what)
    except FileNotFoundError:
        raise SpecError([Problem(name, "no such file", fix_missing)]) from None
    except OSError as error:
        fix = "check the path and its permissions"
        raise SpecError([Problem(name, f"cannot be read: {reason_of(error)}", fix)]) from None
    except ValueError:
        raise SpecError([Problem(name, "not a valid path", "check the path")]) from None


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise SpecError([Problem("<stdin>", "standard input is closed", "name a spec file")])
    data: bytes = sys.stdin.buffer.read(MAX_BYTES + 1)
    return data


def _decode(data: bytes, name: str, what: str) -> str:
    if len(data) > MAX_BYTES:
        message = f"larger than {MAX_BYTES // 1024**2} MiB"
        raise SpecError([Problem(name, message, f"check that this is a {what} file")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        line, column = Lines(before).place(len(before))
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        problem = Problem(f"{name}:{line}:{column}", message, "save the file as UTF-8")
        raise SpecError([problem]) from None


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
