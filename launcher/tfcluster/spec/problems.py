"""The translation of pydantic's errors into mistakes with a message and a fix for the user."""

from __future__ import annotations

import contextlib
import difflib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tfcluster.spec import FieldPath, published_schema, shorten
from tfcluster.spec.fields import Mistake, RulesBroken
from tfcluster.spec.jsonc import Document

_KEY = "[key]"
"""The last part of an error's path where pydantic refuses the key itself."""
_TAGS = frozenset({"<number>", "<list>", "<all>", "<word>", "<network>"})
"""Names of union branches that pydantic puts into the path of an error; not part of the spec."""
_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "bool_type": "true or false",
    "float_type": "a number",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_LIMITS = {
    "less_than_equal": ("large", "at most", "le"),
    "greater_than_equal": ("small", "at least", "ge"),
}
_SYNONYMS = {
    "coordinator": "chief",
    "cmd": "command",
    "cwd": "workdir",
    "data_server": "data_worker",
    "dispatcher": "data_dispatcher",
    "entrypoint": "script",
    "environment": "env",
    "eval": "evaluator",
    "master": "chief",
    "parameter_server": "ps",
    "retries": "max_restarts",
    "servers": "ps",
    "timeout": "run_deadline_s",
}


def unknown_key(path: FieldPath) -> Mistake:
    """Return the mistake for the unknown key at the end of `path`.

    Its fix is a similar name, the right section, or the list of known keys.
    """
    key, parent = str(path[-1]), path[:-1]
    known = sorted(published_schema.keys_at(parent))
    message = f"unknown key {shorten(key)}" + (f" in {show_path(parent)}" if parent else "")
    word = _SYNONYMS.get(key.lower(), key)
    near = [word] if word in known else difflib.get_close_matches(key.lower(), known, n=1)
    if near:
        fix = f'did you mean "{near[0]}"?'
    elif places := published_schema.find_key(word):
        fix = f"it belongs to {' or '.join(places)}"
    elif known:
        fix = f"known keys: {', '.join(known)}; keys that begin with x- are ignored"
    else:
        fix = "remove it"
    return Mistake(path, message, fix, on_key=True)


def join_path(path: Iterable[str | int]) -> str:
    """Return a path as ``--set`` takes it: ``supervision.grace_s``."""
    return ".".join(str(part) for part in path)


def show_path(path: Iterable[str | int]) -> str:
    """Return a path for messages: dotted, with long and unprintable parts quoted and cut."""
    parts = (str(part) for part in path)
    return ".".join(
        part if part.isprintable() and len(part) < 60 else shorten(part) for part in parts
    )


def show(mistake: Mistake) -> str:
    """Return the message after the name of its field."""
    if not mistake.path or mistake.on_key:  # a message about a key quotes it itself
        return mistake.message
    return f"{show_path(mistake.path)}: {mistake.message}"


def repeated_keys(document: Document) -> list[Mistake]:
    """Return a mistake for each key that is written twice in an object."""
    return [
        Mistake(path, f"the key {shorten(path[-1])} is written twice", "keep one", on_key=True)
        for path in document.repeated
    ]


def explain_errors(error: ValidationError, value: Any) -> list[Mistake]:
    """Return all mistakes in `value`, for which the model raised `error`."""
    details = error.errors(include_url=False, include_input=False)
    return [mistake for detail in details for mistake in _explain(detail, value)]


def _explain(detail: ErrorDetails, value: Any) -> Iterator[Mistake]:
    raw = detail["loc"]
    on_key = bool(raw) and raw[-1] == _KEY
    path = tuple(part for part in raw if part not in _TAGS and part != _KEY)
    context = detail.get("ctx", {})
    broken = context.get("error")
    if isinstance(broken, RulesBroken):
        for mistake in broken.mistakes:
            yield mistake.below(*path)
        return
    kind = detail["type"]
    if kind == "extra_forbidden" or (on_key and kind == "literal_error"):
        yield unknown_key(path)
    elif kind == "missing":
        yield _missing_key(path)
    elif kind == "tfcluster":
        yield Mistake(path, context["message"], context["fix"], on_key)
    else:
        yield Mistake(path, _message(detail, path, value), _fix(kind, path, value, context), on_key)


def _missing_key(path: FieldPath) -> Mistake:
    example = json.dumps(published_schema.example_at(path))
    where = f" in {show_path(path[:-1])}" if path[:-1] else ""
    fix = f'add "{path[-1]}": {example}'
    return Mistake(path, f'"{path[-1]}" is missing{where}', fix, on_key=True)


def _message(detail: ErrorDetails, path: FieldPath, value: Any) -> str:
    given = _quoted(_value_at(value, path))
    kind = detail["type"]
    if expected := _EXPECTED.get(kind):
        return f"expected {expected}, not {given}"
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind in ("gpus", "tasks"):
        return f"{text}, not {given}"
    if kind == "string_too_short":
        return "must not be an empty string"
    if kind.endswith("too_short"):
        return "must not be an empty list"
    if kind in _LIMITS:
        return f"{given} is too {_LIMITS[kind][0]}"
    if kind.endswith("too_long"):
        return f"too long: {detail['msg']}"
    return f"{given} is not {text}"


def _fix(kind: str, path: FieldPath, value: Any, context: Mapping[str, Any]) -> str:
    given, example = _value_at(value, path), published_schema.example_at(path)
    if kind == "string_type" and isinstance(given, int | float) and not isinstance(given, bool):
        return f"write it in quotes: {json.dumps(json.dumps(given))}"
    if kind == "tuple_type" and isinstance(given, str):
        if not given.strip():
            return f"leave it out, or write a list: {json.dumps(example)}"
        return f"write it in brackets: {json.dumps(_as_list(given, path))}"
    if kind in _LIMITS:
        _, word, limit = _LIMITS[kind]
        return f"write {word} {context[limit]}"
    if kind == "literal_error":
        choices = {str(choice).lower(): choice for choice in published_schema.choices_at(path)}
        if near := difflib.get_close_matches(str(given).lower(), choices, n=1):
            return f"did you mean {json.dumps(choices[near[0]])}?"
    if kind == "tasks":
        return 'write for example 2, or ["10.0.0.1:2222", "10.0.0.2:2222"]'
    return f"write for example {json.dumps(example)}" if example is not None else ""


def _as_list(text: str, path: FieldPath) -> list[str]:
    """Return a command line as its words, and any other string as one item."""
    if path[-1] in ("args", "command"):
        with contextlib.suppress(ValueError):  # a quote that is not closed
            return shlex.split(text)
    return [text]


def _value_at(value: Any, path: FieldPath) -> Any:
    for part in path:
        members = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(members, Mapping) or part not in members:
            break
        value = members[part]
    return value


def _quoted(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return shorten(value) if isinstance(value, str) else json.dumps(value)
