"""Reads specs in YAML and keeps the place of every key and value; writes what it reads.

PyYAML reads YAML 1.1, editors and other tools read 1.2: a plain word that the two versions take
for different values, such as ``on`` or ``0755``, is an error here. What remains is JSON's values.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml

from tfcluster.spec import FieldPath, shorten
from tfcluster.spec.jsonc import (
    MAX_DEPTH,
    MAX_NUMBER_LENGTH,
    NUMBER,
    TOO_DEEP,
    Document,
    TextError,
)

MOST_VALUES: Final = 100_000
"""The limit of the values that aliases (``*name``) repeat: "a billion laughs" is not expanded."""
_TAG: Final = "tag:yaml.org,2002:"
_BOOLS: Final = {"true": True, "false": False}
_TRAPS: Final = (
    (re.compile(r"yes|no|on|off|y|n", re.I), "is true or false in YAML 1.1 and a word in 1.2",
     "write true or false, or put the word in quotes"),
    (re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.\d*)?"), "is a number to the base of 60 in YAML 1.1",
     "put it in quotes"),
    (re.compile(r"[-+]?(0o?[0-7_]+|0x[\da-f_]+|0b[01_]+)", re.I),
     "is a number to the base of 2, 8 or 16, at least in one version of YAML",
     "write the number in decimal, or put it in quotes"),
    (re.compile(r"[-+]?\.(inf|nan)", re.I), "is not a finite number",
     "write a finite number: JSON has no such value"),
    (re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)(e[-+]?\d+)?", re.I),
     "is a number or a word, depending on the version of YAML",
     "write numbers as 12, 0.5 or 1.0e-3, and put words in quotes"),
)  # fmt: skip
"""Plain words that are not JSON's numbers: what they look like, what is wrong, what to write."""


def write(value: Any) -> str:
    """Return YAML of a JSON value, with quotes wherever `read` asks for them."""

    class Dumper(yaml.SafeDumper):
        pass

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "'" if _find_trap(text) else None
        return dumper.represent_scalar(f"{_TAG}str", text, style)

    Dumper.add_representer(str, represent)
    return str(yaml.dump(value, None, Dumper, sort_keys=False, default_flow_style=None, width=100))


def _find_trap(text: str) -> tuple[str, str] | None:
    """Return what is wrong with a plain word that might be meant as something else, and the fix."""
    traps = ((problem, fix) for pattern, problem, fix in _TRAPS if pattern.fullmatch(text))
    return next(traps, None) if text.strip("+-.") else None


def read(text: str) -> Document:
    """Read one YAML document; raises TextError at the first error."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None
    except yaml.reader.ReaderError as error:
        message = f"the character {chr(int(error.character))!r} is not allowed"
        raise TextError(int(error.position), message, "remove it") from None
    except RecursionError:
        raise TextError(0, *TOO_DEEP) from None
    except ValueError as error:  # PyYAML 6 fails so for an escape such as "\UFFFFFFFF"
        raise TextError(0, f"not valid YAML: {error}", "check the escapes in strings") from None
    reader = _Reader(yaml.SafeLoader(""))
    value = None if root is None else reader.value(root, (), 0)
    reader.values.setdefault((), 0)
    return Document(value, reader.values, reader.keys, tuple(reader.repeated))


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> TextError:
    mark = error.problem_mark or error.context_mark
    problem = " ".join(filter(None, (error.context, error.problem)))
    fix = "check the indentation and the quotes"
    offset = mark.index if mark is not None else 0
    if "\\t" in problem or text[offset : offset + 1] == "\t":
        fix = "indent with spaces, not with tabs"
    elif "single document" in problem:
        fix = "keep one document: remove the part after ---"
    elif "mapping values are not allowed" in problem:
        fix = "put a text with ': ' in quotes, and check the indentation"
    return TextError(offset, f"not valid YAML: {problem}", fix)


@dataclass(slots=True)
class _Reader:
    resolver: Any
    count: int = 0
    values: dict[FieldPath, int] = field(default_factory=dict)
    keys: dict[FieldPath, int] = field(default_factory=dict)
    repeated: list[FieldPath] = field(default_factory=list)

    def fail(self, node: yaml.Node, message: str, fix: str) -> NoReturn:
        raise TextError(node.start_mark.index, message, fix)

    def value(self, node: yaml.Node, path: FieldPath, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self.fail(node, *TOO_DEEP)
        self.count += 1
        if self.count > MOST_VALUES:
            self.fail(node, f"more than {MOST_VALUES:,} values", "use fewer aliases (*name)")
        self.values[path] = node.start_mark.index
        self.check_tag(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self.value(item, (*path, index), depth + 1) for index, item in items]
        assert isinstance(node, yaml.ScalarNode)
        return self.scalar(node)

    def mapping(self, node: yaml.MappingNode, path: FieldPath, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node)
            member = (*path, key)
            if key in members:
                self.repeated.append(member)
            self.keys[member] = key_node.start_mark.index
            members[key] = self.value(value_node, member, depth + 1)
        return members

    def key(self, node: yaml.Node) -> str:
        self.check_tag(node)
        if node.tag == f"{_TAG}merge":
            self.fail(node, "'<<' (a merge) is not supported", "write the keys out")
        if not isinstance(node, yaml.ScalarNode):
            self.fail(node, "a key must be a string", "write `key: value`")
        key = self.scalar(node)
        if not isinstance(key, str):
            self.fail(node, f"the key {node.value or key} is not a string", "put it in quotes")
        return key

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text, kind = str(node.value), node.tag.removeprefix(_TAG)
        value: Any = text
        if node.style is not None or kind == "timestamp" or node.tag != self.implicit_tag(node):
            pass  # a string
        elif kind == "null":
            value = None
        elif kind == "bool" and text.lower() in _BOOLS:
            value = _BOOLS[text.lower()]
        elif kind in ("int", "float") and (match := NUMBER.fullmatch(text)):
            value = float(text) if match[1] or match[2] else int(text[:100])
        elif trap := _find_trap(text):
            self.fail(node, f"{shorten(text)} {trap[0]}", trap[1])
        self.check_scalar(node, value)
        return value

    def check_scalar(self, node: yaml.ScalarNode, value: str | float | None) -> None:
        """Raise TextError for a value that JSON cannot hold or that no program can be passed."""
        if isinstance(value, str):
            if "\0" in value:
                message = "the character \\u0000 cannot be passed to a program"
                self.fail(node, message, "remove it")
            if any("\ud800" <= character <= "\udfff" for character in value):
                message = "half of a character (an unpaired surrogate)"
                self.fail(node, message, "write the character")
        elif isinstance(value, float) and not math.isfinite(value):
            self.fail(node, "not a finite number", "write a finite number")
        elif value is not None and abs(value) >= 10**MAX_NUMBER_LENGTH:
            fix = f"write at most {MAX_NUMBER_LENGTH} characters"
            self.fail(node, "a number with too many digits", fix)

    def check_tag(self, node: yaml.Node) -> None:
        """Raise TextError for a tag that the user wrote, except ``!!str``."""
        if node.tag not in (self.implicit_tag(node), f"{_TAG}str"):
            message = f"tags such as {shorten(node.tag)} are not supported"
            self.fail(node, message, "remove the tag")

    def implicit_tag(self, node: yaml.Node) -> str:
        """Return the tag that `node` has if the user wrote none."""
        is_plain = getattr(node, "style", None) is None
        return str(self.resolver.resolve(type(node), node.value, (is_plain, not is_plain)))
