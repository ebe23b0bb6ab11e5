"""Where a spec is read from: a file, standard input, or the folder's own tfcluster.json."""

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
MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a spec and its origin."""

    text: str
    name: str
    """As the user wrote it; stands before line and column."""
    path: Path | None
    """Absolute; None where there is no file."""
    folder: Path
    has_places: bool = True
    """Whether line and column mean anything to the user."""

    @property
    def has_comments(self) -> bool:
        return self.path is not None and self.path.suffix.lower() == ".jsonc"

    @property
    def spec_name(self) -> str:
        """The run's name where the spec gives none: the file's, fit for a folder."""
        stem = self.path.stem if self.path else ("stdin" if self.has_places else self.name)
        return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:63] or "tfcluster"

    def place(self, line_and_column: tuple[int, int]) -> str:
        """``file:line:column``."""
        if not self.has_places:
            return self.name
        return f"{self.name}:{line_and_column[0]}:{line_and_column[1]}"


def read_source(source: str | Path | None) -> Source:
    """Read a file, ``-`` for standard input, None for the working directory's own spec.

    Raises SpecError for a file that is missing, no file, unreadable, too large or not UTF-8.
    """
    if source is None:
        source = find_default(Path.cwd())
    if str(source) == "-":
        return Source(_decode(_from_stdin(), "<stdin>"), "<stdin>", None, Path.cwd())
    name = _printable(str(source))
    path = Path(os.path.expanduser(source))
    text = _decode(_from_file(path, name), name)
    return Source(text, name, path.absolute(), path.absolute().parent)


def find_default(folder: Path) -> Path:
    """``tfcluster.json`` or ``tfcluster.jsonc`` of `folder`; raises SpecError for none or both."""
    found = [Path(name) for name in DEFAULTS if (folder / name).exists()]
    if len(found) == 1:
        return found[0]
    here = _printable(str(folder))
    if found:
        message = f"both {' and '.join(DEFAULTS)} are here"
        raise SpecError([Problem(here, message, "name the one that is meant")])
    fix = "name a spec file, or write a first one with `tfcluster init`"
    raise SpecError([Problem(here, f"no {' or '.join(DEFAULTS)} here", fix)])


def _from_stdin() -> bytes:
    if sys.stdin is None:
        raise SpecError([Problem("<stdin>", "standard input is closed", "name a spec file")])
    data: bytes = sys.stdin.buffer.read(MOST_BYTES + 1)
    return _not_too_large(data, "<stdin>")


def _from_file(path: Path, name: str) -> bytes:
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            fix = "name the file in it"
            raise SpecError([Problem(name, "this is a folder, not a spec file", fix)])
        with path.open("rb") as file:
            return _not_too_large(file.read(MOST_BYTES + 1), name)
    except FileNotFoundError:
        fix = "check the path; `tfcluster init` writes a first spec"
        raise SpecError([Problem(name, "there is no such file", fix)]) from None
    except OSError as error:
        reason = reason_of(error)
        fix = "check the path and its permissions"
        raise SpecError([Problem(name, f"cannot be read: {reason}", fix)]) from None
    except ValueError:
        fix = "check the path"
        raise SpecError([Problem(name, "a path cannot hold this", fix)]) from None


def _not_too_large(data: bytes, name: str) -> bytes:
    if len(data) > MOST_BYTES:
        message = f"larger than {MOST_BYTES // 1024**2} MiB"
        raise SpecError([Problem(name, message, "is this a spec file?")])
    return data


def _decode(data: bytes, name: str) -> str:
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
