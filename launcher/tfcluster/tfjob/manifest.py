"""Reads the manifest of a TFJob, and knows which of its fields nobody has taken yet."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from tfcluster.errors import UsageError
from tfcluster.spec import shorten
from tfcluster.spec.yaml_text import MOST_VALUES

VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha2")
"""The versions whose fields are those of v1, or were moved by it into ``runPolicy``."""
NoteKind = Literal["missing", "changed", "needed"]
_TOO_MANY = f"more than {MOST_VALUES:,} values: use fewer aliases (*name)"
_EXPECTED = {dict: "an object", list: "a list", str: "a string", int: "a number", bool: "a boolean"}


@dataclass(frozen=True, slots=True)
class ConversionNote:
    """A remark about one field of the manifest, for the reader of the spec."""

    kind: NoteKind
    """`missing`: the spec has no counterpart; `changed`: it means something else in the spec;
    `needed`: the spec is not complete without an answer."""
    place: str
    """The path of the field, such as ``spec.runPolicy.suspend``."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.place}: {self.message}"
        return f"{head}\n    → {self.fix}" if self.fix else head


@dataclass(slots=True)
class Fields:
    """An object of the manifest: fields are taken one by one, the rest is reported."""

    path: str
    values: dict[str, Any]
    notes: list[ConversionNote]

    def at(self, key: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str, kind: type) -> Any:
        """Return a field and remove it; None if it is missing or null.

        Raises UsageError for a value of another type.
        """
        value = self.values.pop(key, None)
        if value is None or (isinstance(value, kind) and (kind is bool or value is not True)):
            return value
        message = f"{self.at(key)} is {_show(value)}, not {_EXPECTED[kind]}"
        raise UsageError(message, fix="write it as the reference of TFJob has it")

    def below(self, key: str) -> Fields:
        """Return an object of this one; an empty one if it is missing."""
        return Fields(self.at(key), self.take(key, dict) or {}, self.notes)

    def each(self, key: str) -> list[Fields]:
        """Return the objects of a list; raises UsageError for an entry that is not an object."""
        objects = []
        for index, value in enumerate(self.take(key, list) or ()):
            place = f"{self.at(key)}[{index}]"
            if not isinstance(value, dict):
                message = f"{place} is {_show(value)}, not an object"
                raise UsageError(message, fix="write it as the reference of Kubernetes has it")
            objects.append(Fields(place, value, self.notes))
        return objects

    def take_rest(self) -> dict[str, Any]:
        """Return and remove the fields that nobody has taken, without those that are empty."""
        rest = {key: value for key, value in self.values.items() if value not in (None, {}, [], "")}
        self.values.clear()
        return rest

    def note(self, kind: NoteKind, key: str, message: str, fix: str = "") -> None:
        """Report something about a field, or with the key "" about the object."""
        self.notes.append(ConversionNote(kind, self.at(key) if key else self.path, message, fix))

    def note_rest(self, fix: str = "") -> None:
        """Report every field that nobody has taken."""
        for key in self.take_rest():
            self.note("missing", key, "has no counterpart in a spec", fix)


def read(text: str, name: str) -> Fields:
    """Return the TFJob in `text`, which `name` names in messages; raises UsageError if none is."""
    try:
        loaded = [value for value in yaml.load_all(text, _Loader) if value is not None]
        documents = [_unshare(value, itertools.count(1)) for value in loaded]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None else name
        problem = " ".join(filter(None, (error.context, error.problem)))
        fix = "check the indentation; fill in the placeholders of a template first"
        raise UsageError(f"{place}: not valid YAML: {problem}", fix=fix) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{name}: not valid YAML: {error}", fix="check the file") from None
    if len(documents) > 1:
        kinds = ", ".join(_kind(document) for document in documents)
        fix = "put the TFJob into a file of its own, and `kubectl apply` the others"
        raise UsageError(f"{name} has {len(documents)} documents: {kinds}", fix=fix)
    document = documents[0] if documents else None
    return Fields("", _check_kind(document, name), [])


def _show(value: Any) -> str:
    return json.dumps(value, default=str)[:60]


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key that is written twice, and what merges (``<<``) make large."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._flattened: dict[int, yaml.MappingNode] = {}
        """The objects that have their merged (``<<``) keys, too; some of them twice."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        seen = set[str]()
        for key, _ in () if id(node) in self._flattened else node.value:
            if key.value in seen:
                message = f"the key {shorten(key.value)} is written twice"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        self._flattened[id(node)] = node
        super().flatten_mapping(node)
        if len(node.value) > MOST_VALUES:
            raise ValueError(_TOO_MANY)


def _unshare(value: Any, count: Iterator[int]) -> Any:
    """Return a copy without values that aliases (``*name``) share, and with dates as strings.

    Raises ValueError if there are more than `MOST_VALUES` then: "a billion laughs" is not expanded.
    """
    if next(count) > MOST_VALUES:
        raise ValueError(_TOO_MANY)
    if isinstance(value, dict):
        return {str(key): _unshare(item, count) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshare(item, count) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _kind(document: Any) -> str:
    kind = document.get("kind") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else "no object"


def _check_kind(document: Any, name: str) -> dict[str, Any]:
    """Return the object; raises UsageError for anything but a TFJob of a known version."""
    fix = "name the manifest that `kubectl apply` starts: kind TFJob, apiVersion kubeflow.org/v1"
    if not isinstance(document, dict) or "kind" not in document:
        raise UsageError(f"{name} is not the manifest of an object of Kubernetes", fix=fix)
    kind, version = _kind(document), str(document.get("apiVersion"))
    if kind != "TFJob":
        if kind == "List":
            fix = "put the TFJob into a file of its own"
        elif kind.endswith("Job"):
            fix = "tfcluster starts TensorFlow's clusters; of Kubeflow's jobs it reads TFJobs only"
        raise UsageError(f"{name} is a {shorten(kind)}, not a TFJob", fix=fix)
    group, _, number = version.partition("/")
    if group != "kubeflow.org" or number not in VERSIONS:
        fix = f"convert it to kubeflow.org/v1 first ({', '.join(VERSIONS[1:])} are read, too)"
        raise UsageError(f"{name}: a TFJob of {shorten(version)} cannot be read", fix=fix)
    return document
