"""A reader of specs in TOML that keeps the place of every key and value, which `tomllib` does not.

`tomllib` reads the text and finds its errors; a second pass over the valid text finds the places.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import Any, Final

from tfcluster.spec import Path, shorten
from tfcluster.spec.jsonc import MAX_DEPTH, TOO_DEEP, Document, Lines, TextError, check_scalar

_SPACE: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK: Final = re.compile(r"[ \t]*")
_KEY_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY: Final = re.compile(rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*")
_SCALAR: Final = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'{3}.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^,\]}#\n]+''',
    re.DOTALL,
)
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)")


def read(text: str) -> Document:
    """Read TOML; raises TextError at the first error."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text) from None
    except RecursionError:
        raise TextError(0, *TOO_DEEP) from None
    except ValueError as error:  # an integer with too many digits
        raise TextError(0, f"not valid TOML: {error}", "write a smaller number") from None
    places = _Places(text.replace("\r\n", " \n"))
    places.document()
    _check(value, (), places)
    return Document(value, places.values, places.keys, ())


def _syntax_error(message: str, text: str) -> TextError:
    match = _PLACE.search(message)
    offset = len(text.rstrip())
    if match is not None and match[1] is not None:
        offset = Lines(text).offset(int(match[1]), int(match[2]))
    what = _PLACE.sub("", message)
    fix = "put strings in double quotes, and write one `key = value` on each line"
    if "overwrite" in what or "twice" in what or "already" in what or "Cannot" in what:
        fix = "keep one of the two"
    return TextError(offset, f"not valid TOML: {what[:1].lower()}{what[1:]}", fix)


def _check(value: Any, path: Path, places: _Places) -> None:
    """Raise TextError for a value that JSON does not have, such as a date."""
    if len(path) > MAX_DEPTH:
        offset = places.values.get(path[:1], 0)
        raise TextError(offset, *TOO_DEEP)
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            _check(inner, (*path, key), places)
        return
    offset = places.values.get(path, 0)
    if not isinstance(value, str | int | float):
        raise TextError(offset, f"{shorten(str(value))} is a date or a time", "put it in quotes")
    check_scalar(value, offset)


@dataclass(slots=True)
class _Places:
    """The offsets of the keys and values of a text that is valid TOML."""

    text: str
    at: int = 0
    values: dict[Path, int] = field(default_factory=lambda: {(): 0})
    keys: dict[Path, int] = field(default_factory=dict)
    tables: dict[Path, int] = field(default_factory=dict)
    """Path of an array of tables (``[[cluster.worker]]``) → the number of its tables so far."""

    def document(self) -> None:
        table: Path = ()
        while self.skip(_SPACE) < len(self.text):
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.member(table)

    def skip(self, pattern: re.Pattern[str]) -> int:
        """Step over `pattern`, which may be missing; return the new offset."""
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def header(self) -> Path:
        start, is_item = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if is_item else 1
        self.skip(_BLANK)
        path = self.key(())
        if is_item:
            self.tables[path] = self.tables.get(path, -1) + 1
            path = (*path, self.tables[path])
        self.values[path] = start
        self.skip(_BLANK)
        self.at += 2 if is_item else 1
        return path

    def key(self, above: Path) -> Path:
        """Read a dotted key; return its path below `above`, in the last table of each array."""
        start = self.at
        self.skip(_KEY)
        parts = tomllib.loads(f"{self.text[start : self.at]} = 0")
        path, is_last = above, False
        while not is_last:
            ((name, parts),) = parts.items()
            path = (*path, name)
            is_last = parts == 0
            self.keys.setdefault(path, start)
            self.values.setdefault(path, start)
            if not is_last and path in self.tables:
                path = (*path, self.tables[path])
        return path

    def member(self, above: Path) -> None:
        path = self.key(above)
        self.skip(_BLANK)
        self.at += 1  # the '='
        self.skip(_BLANK)
        self.value(path)

    def value(self, path: Path) -> None:
        self.values[path] = self.at
        opened = self.text[self.at]
        if opened not in "[{":
            self.skip(_SCALAR)
            return
        self.at += 1
        index = 0
        while self.skip(_SPACE) < len(self.text) and self.text[self.at] not in "]}":
            if self.text[self.at] == ",":
                self.at += 1
            elif opened == "[":
                self.value((*path, index))
                index += 1
            else:
                self.member(path)
        self.at += 1
