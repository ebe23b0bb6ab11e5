"""A reader of JSON and JSONC that keeps the place of every key and value, which `json` does not.

`yaml_text` returns the same `Document`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tfcluster.agent import foreign_json
from tfcluster.spec import FieldPath, shorten

MAX_DEPTH = 64
MAX_NUMBER_LENGTH = 40

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(
    r"""" (?: [^"\\\x00-\x1f\ud800-\udfff]++ | \\["\\/bfnrt]
    | \\u(?!0000|[dD][89a-fA-F])[0-9a-fA-F]{4}
    | \\u[dD][89abAB][0-9a-fA-F]{2} \\u[dD][c-fC-F][0-9a-fA-F]{2} )*""",
    re.VERBOSE,
)
"""The start of a string up to its closing quote, or up to the first character that is refused.

No possessive group (``)*+``): that of Python 3.11.2 ends behind that character.
"""
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_WORD = re.compile(r"[-+]?[A-Za-z_0-9.][\w.+-]*")
_WORDS = {"true": True, "false": False, "null": None}


TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep", "use fewer levels"
"""Message and fix."""


class TextError(ValueError):
    """An error in the text at `offset`, with its fix."""

    def __init__(self, offset: int, message: str, fix: str) -> None:
        super().__init__(message)
        self.offset, self.message, self.fix = offset, message, fix


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON value, and the offset of each of its parts in the text."""

    value: Any
    values: dict[FieldPath, int]
    """Path → offset of the value."""
    keys: dict[FieldPath, int]
    """Path → offset of the key, for members of objects."""
    repeated: tuple[FieldPath, ...]
    """Paths of keys written twice; `keys` and `values` hold the second."""

    def offset(self, path: FieldPath, *, on_key: bool = False) -> int:
        """Return the offset of the value at `path`, or of its key; else of what is around it."""
        places = self.keys if on_key else self.values
        if path in places:
            return places[path]
        while path not in self.values:
            path = path[:-1]
        return self.values[path]


def place_in(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column of `offset`, both counted from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def read(text: str, *, comments: bool = False) -> Document:
    """Read JSON; with `comments` JSONC: ``//``, ``/* */`` and commas after the last item.

    Raises TextError at the first error.
    """
    reader = _Reader(text, comments)
    reader.skip_space()
    value = reader.value((), 0)
    reader.skip_space()
    if reader.at < len(text):
        reader.fail("unexpected text after the end of the value", "remove it")
    return Document(value, reader.values, reader.keys, tuple(reader.repeated))


@dataclass(slots=True)
class _Reader:
    text: str
    comments: bool
    at: int = 0
    values: dict[FieldPath, int] = field(default_factory=dict)
    keys: dict[FieldPath, int] = field(default_factory=dict)
    repeated: list[FieldPath] = field(default_factory=list)

    def fail(self, message: str, fix: str = "", offset: int | None = None) -> NoReturn:
        raise TextError(self.at if offset is None else offset, message, fix)

    @property
    def next(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip_space(self) -> None:
        while True:
            self.at = _match_end(_SPACE, self.text, self.at)
            if self.next != "/":
                return
            comment = _COMMENT.match(self.text, self.at)
            if comment is None:
                self.fail("a comment that does not end, or a stray '/'", "end it with */")
            if not self.comments:
                fix = "remove it, or rename the file to .jsonc"
                self.fail("comments are allowed in .jsonc files only", fix)
            self.at = comment.end()

    def value(self, path: FieldPath, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self.fail(*TOO_DEEP)
        self.values[path] = self.at
        match self.next:
            case "{":
                return self.object(path, depth)
            case "[":
                return self.array(path, depth)
            case '"':
                return self.string()
            case "":
                self.fail("unexpected end of the file", "add the missing bracket or value")
        return self.scalar()

    def object(self, path: FieldPath, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        opened = self.at
        self.at += 1
        while self.next_item("}", opened, first=not members):
            if self.next != '"':
                self.fail('expected a key in "double quotes"', self.quoting_fix())
            start = self.at
            key = self.string()
            member = (*path, key)
            if key in members:
                self.repeated.append(member)
            self.keys[member] = start
            self.skip_space()
            if self.next != ":":
                self.fail(f"expected ':' after the key {shorten(key)}", "add ':'")
            self.at += 1
            self.skip_space()
            members[key] = self.value(member, depth + 1)
        return members

    def array(self, path: FieldPath, depth: int) -> list[Any]:
        items: list[Any] = []
        opened = self.at
        self.at += 1
        while self.next_item("]", opened, first=not items):
            items.append(self.value((*path, len(items)), depth + 1))
        return items

    def next_item(self, closing: str, opened: int, *, first: bool) -> bool:
        """Step to the next item and return True; after the last, step past the bracket."""
        self.skip_space()
        comma = None
        if not first and self.next == ",":
            comma = self.at
            self.at += 1
            self.skip_space()
        if self.next == closing:
            if comma is not None and not self.comments:
                self.fail(f"unexpected comma before '{closing}'", "remove the comma", comma)
            self.at += 1
            return False
        if not self.next:
            self.fail(f"this '{self.text[opened]}' is never closed", f"add '{closing}'", opened)
        if not first and comma is None:
            self.fail(f"expected ',' or '{closing}'", "add the missing comma before this")
        return True

    def string(self) -> str:
        start = self.at
        self.at = _match_end(_STRING, self.text, start)
        match self.next:
            case '"':
                self.at += 1
                return str(foreign_json.parse_json(self.text[start : self.at]))
            case "\\":
                self.fail_escape(self.text[self.at + 1 : self.at + 6])
            case "" | "\n" | "\r":
                self.fail("this string is never closed", "add the closing '\"'", start)
            case other:
                self.fail(f"the character {other!r} is not allowed in a string", "remove it")

    def fail_escape(self, text: str) -> NoReturn:
        if text[:1] != "u":
            self.fail(f"\\{text[:1]} is not a JSON escape", "write \\\\ for a backslash")
        if not re.fullmatch("u[0-9a-fA-F]{4}", text):
            self.fail("\\u needs four hexadecimal digits", "for example \\u00e9")
        if text == "u0000":
            self.fail("the character \\u0000 cannot be passed to a program", "remove it")
        self.fail("half of a character (an unpaired surrogate)", "write the character")

    def scalar(self) -> Any:
        word = _WORD.match(self.text, self.at)
        if word is None:
            self.fail(f"{self.next!r} is not valid JSON", self.quoting_fix())
        start, token = self.at, word[0]
        if token in _WORDS:
            self.at = word.end()
            return _WORDS[token]
        number = NUMBER.fullmatch(token)
        if number is None:
            self.fail(f"{shorten(token)} is not valid JSON", _word_fix(token))
        if len(token) > MAX_NUMBER_LENGTH:
            fix = f"write at most {MAX_NUMBER_LENGTH} characters"
            self.fail("a number with too many digits", fix)
        self.at = word.end()
        is_whole = number[1] is None and number[2] is None
        value = int(token) if is_whole else float(token)
        if value in (float("inf"), float("-inf")):
            self.fail(f"{shorten(token)} is too large", "write a smaller number", start)
        return value

    def quoting_fix(self) -> str:
        if self.next == "'":
            return 'use "double quotes"'
        return 'put strings in "double quotes"'


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _word_fix(token: str) -> str:
    lower = token.lower().lstrip("+-")
    if lower in ("nan", "inf", "infinity"):
        return "write a finite number: JSON has no such value"
    if lower in ("true", "false"):
        return f"write {lower}"
    if lower in ("none", "nil", "undefined"):
        return "write null"
    if token[0] in "+-.0123456789":
        return 'write numbers as 12 or 0.5, and put strings in "double quotes"'
    return 'put strings in "double quotes"'
