"""JSON and JSONC with the place of every key and value, which `json` cannot tell."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tfcluster.spec.fields import Path, shorten

DEEPEST = 64
LONGEST_NUMBER = 40

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_WORD = re.compile(r"[-+]?[A-Za-z_0-9.][\w.+-]*")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"
}  # fmt: skip


class JsonError(ValueError):
    """The text is no JSON; `offset` says where in it."""

    def __init__(self, offset: int, message: str, fix: str) -> None:
        super().__init__(message)
        self.offset, self.message, self.fix = offset, message, fix


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON value, and the offset of each of its parts in the text."""

    value: Any
    values: dict[Path, int]
    """Path → offset of the value."""
    keys: dict[Path, int]
    """Path → offset of the key, for members of objects."""
    repeated: tuple[Path, ...]
    """Keys written twice, as paths; `keys` and `values` hold the second."""


class Lines:
    """Line and column, both from 1, of an offset in a text."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer(r"\n", text))]

    def place(self, offset: int) -> tuple[int, int]:
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def read(text: str, *, comments: bool = False) -> Document:
    """`comments`: JSONC, with ``//``, ``/* */`` and commas after the last item.

    Raises JsonError at the first thing that is not JSON.
    """
    reader = _Reader(text, comments)
    reader.skip_space()
    value = reader.value((), 0)
    reader.skip_space()
    if reader.at < len(text):
        reader.fail("text after the end of the value", "remove it")
    return Document(value, reader.values, reader.keys, tuple(reader.repeated))


@dataclass(slots=True)
class _Reader:
    text: str
    comments: bool
    at: int = 0
    values: dict[Path, int] = field(default_factory=dict)
    keys: dict[Path, int] = field(default_factory=dict)
    repeated: list[Path] = field(default_factory=list)

    def fail(self, message: str, fix: str = "", offset: int | None = None) -> NoReturn:
        raise JsonError(self.at if offset is None else offset, message, fix)

    @property
    def next(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip_space(self) -> None:
        while True:
            space = _SPACE.match(self.text, self.at)
            self.at = space.end() if space else self.at
            if self.next != "/":
                return
            comment = _COMMENT.match(self.text, self.at)
            if comment is None:
                self.fail("a comment that does not end, or a stray '/'", "end it with */")
            if not self.comments:
                fix = "remove it, or name the file .jsonc"
                self.fail("comments are read in .jsonc files only", fix)
            self.at = comment.end()

    def value(self, path: Path, depth: int) -> Any:
        if depth > DEEPEST:
            self.fail(f"nested more than {DEEPEST} deep", "no spec needs that")
        self.values[path] = self.at
        match self.next:
            case "{":
                return self.object(path, depth)
            case "[":
                return self.array(path, depth)
            case '"':
                return self.string()
            case "":
                self.fail("the file ends too early", "is a bracket or a value missing?")
        return self.scalar()

    def object(self, path: Path, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        opened = self.at
        self.at += 1
        while self.another("}", opened, first=not found):
            if self.next != '"':
                self.fail('a key in "double quotes" is expected here', self.quoting_cure())
            start = self.at
            key = self.string()
            here = (*path, key)
            if key in found:
                self.repeated.append(here)
            self.keys[here] = start
            self.skip_space()
            if self.next != ":":
                self.fail(f"a ':' is expected after the key {shorten(key)}", "write it")
            self.at += 1
            self.skip_space()
            found[key] = self.value(here, depth + 1)
        return found

    def array(self, path: Path, depth: int) -> list[Any]:
        found: list[Any] = []
        opened = self.at
        self.at += 1
        while self.another("]", opened, first=not found):
            found.append(self.value((*path, len(found)), depth + 1))
        return found

    def another(self, closing: str, opened: int, *, first: bool) -> bool:
        """Step to the next item; False, and past the bracket, when there is none."""
        self.skip_space()
        comma = None
        if not first and self.next == ",":
            comma = self.at
            self.at += 1
            self.skip_space()
        if self.next == closing:
            if comma is not None and not self.comments:
                self.fail(f"a comma before '{closing}'", "remove the comma", comma)
            self.at += 1
            return False
        if not self.next:
            self.fail(f"this '{self.text[opened]}' is never closed", f"add '{closing}'", opened)
        if not first and comma is None:
            self.fail(f"a ',' or '{closing}' is expected here", "is a comma missing before this?")
        return True

    def string(self) -> str:
        start = self.at
        self.at += 1
        parts: list[str] = []
        while True:
            plain = _PLAIN.match(self.text, self.at)
            assert plain is not None
            parts.append(plain[0])
            self.at = plain.end()
            match self.next:
                case '"':
                    self.at += 1
                    return "".join(parts)
                case "\\":
                    parts.append(self.escape())
                case "" | "\n" | "\r":
                    self.fail("this text is never closed", "add the closing '\"'", start)
                case other:
                    self.fail(f"the character {other!r} cannot stand in a text", "remove it")

    def escape(self) -> str:
        start = self.at
        letter = self.text[self.at + 1 : self.at + 2]
        if letter != "u":
            if letter not in _ESCAPES:
                self.fail(f"\\{letter} is no escape of JSON", "write \\\\ for a backslash")
            self.at += 2
            return _ESCAPES[letter]
        units = [self.unit()]
        if 0xD800 <= units[0] < 0xDC00 and self.text.startswith("\\u", self.at):
            units.append(self.unit())
        text = b"".join(unit.to_bytes(2, "big") for unit in units)
        try:
            character = text.decode("utf-16-be")
        except UnicodeDecodeError:
            self.fail("half of a character (a lone surrogate)", "write the character", start)
        if character == "\0":
            self.fail("the character \\u0000 cannot be passed to a program", "remove it", start)
        return character

    def unit(self) -> int:
        digits = _HEX.match(self.text, self.at + 2)
        if digits is None:
            self.fail("\\u needs four hexadecimal digits", "for example \\u00e9")
        self.at = digits.end()
        return int(digits[0], 16)

    def scalar(self) -> Any:
        word = _WORD.match(self.text, self.at)
        if word is None:
            self.fail(f"{self.next!r} begins no value of JSON", self.quoting_cure())
        start, token = self.at, word[0]
        if token in _WORDS:
            self.at = word.end()
            return _WORDS[token]
        number = _NUMBER.fullmatch(token)
        if number is None:
            self.fail(f"{shorten(token)} is no value of JSON", _cure_of_word(token))
        if len(token) > LONGEST_NUMBER:
            self.fail("a number with too many digits", f"at most {LONGEST_NUMBER} characters")
        self.at = word.end()
        is_whole = number[1] is None and number[2] is None
        value = int(token) if is_whole else float(token)
        if value in (float("inf"), float("-inf")):
            self.fail(f"{shorten(token)} is too large", "write a smaller number", start)
        return value

    def quoting_cure(self) -> str:
        return 'JSON takes "double quotes" only' if self.next == "'" else 'write texts in "quotes"'


def _cure_of_word(token: str) -> str:
    lower = token.lower().lstrip("+-")
    if lower in ("nan", "inf", "infinity"):
        return "JSON has no such number"
    if lower in ("true", "false"):
        return f"write {lower}"
    if lower in ("none", "nil", "undefined"):
        return "write null"
    if token[0] in "+-.0123456789":
        return 'write numbers as 12 or 0.5, and texts in "quotes"'
    return 'write texts in "quotes"'
