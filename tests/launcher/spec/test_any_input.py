"""The loader returns a spec or raises SpecError for any input, never another error."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.errors import SpecError
from tfcluster.spec import PlanOptions, jsonc, published_schema
from tfcluster.spec.load import load
from tfcluster.spec.model import ClusterSpec

RICH: dict[str, Any] = {
    "$schema": "s.json",
    "version": 1,
    "name": "a",
    "cluster": {
        "chief": ["10.0.0.1:2222"],
        "worker": ["10.0.0.2:2222", {"address": "[2001:db8::5]:0", "gpus": [0], "env": {"A": "1"}}],
        "ps": ["gpu4:1"],
        "evaluator": ["gpu5:1"],
    },
    "job": {
        "script": "t.py",
        "args": ["--x"],
        "env": {"B": None},
        "secrets": ["C"],
        "prepare": {"module": "a.b"},
    },
    "strategy": {"name": "parameter_server", "collective_timeout_s": "5m"},
    "keras": {"version": "2", "steps_per_execution": 4},
    "runtime": {"hosts": {"*": {"python": "/p"}, "gpu4": {"ssh": "a@b", "env": {"D": "2"}}}},
    "resources": {"gpus": "all", "cpus": 2, "pin": True},
    "supervision": {"max_restarts": 1, "run_deadline_s": "12h", "min_workers": 2},
    "checkpoints": {"dir": "/x", "outputs": ["*.keras"], "keep": 1},
}

KEYS = sorted(
    key for path in [(), ("job",), ("cluster",)] for key in published_schema.keys_at(path)
)
ODD = ["", "all", "TF_CONFIG", "12h", "-1s", "a:1", "[::1]:0", "u@h:1", "x-y", "\x7f", "a\nb"]
WORDS = st.sampled_from([*KEYS, *ODD])
TEXTS = WORDS | st.text(max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**18, max_value=10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from paths(inner, (*path, key))


PATHS = [path for path in paths(RICH) if path]


@st.composite
def mutated_specs(draw: st.DrawFn) -> Any:
    """Return the rich spec with up to four parts replaced, removed, added or given a new key."""
    value = copy.deepcopy(RICH)
    for _ in range(draw(st.integers(1, 4))):
        *above, last = draw(st.sampled_from(PATHS))
        parent: Any = value
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change removed it
            for key in above:
                parent = parent[key]
        if isinstance(parent, dict):
            change = draw(st.sampled_from(["replace", "remove", "add"]))
            parent.pop(last, None)
            if change != "remove":
                parent[last if change == "replace" else draw(TEXTS)] = draw(VALUES)
        elif isinstance(parent, list):
            parent.append(draw(VALUES))
    return value


def load_bytes(data: bytes, name: str = "a.json") -> ClusterSpec | SpecError:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            return load(path).spec
        except SpecError as error:
            assert_is_explained(error, name)
            return error


def assert_is_explained(error: SpecError, name: str) -> None:
    assert error.problems
    for problem in error.problems:
        assert f"{name}" in problem.place
        assert problem.message
        assert "\n" not in problem.message
        assert "<list>" not in problem.message
        assert "[key]" not in problem.message
        assert "Input should" not in problem.message


@settings(max_examples=75)
@given(mutated_specs())
def test_a_mutated_spec_is_accepted_or_explained(value: Any) -> None:
    found = load_bytes(json.dumps(value).encode())
    if isinstance(found, ClusterSpec):
        again = load_bytes(found.model_dump_json(by_alias=True).encode())
        assert again == found


@settings(max_examples=60)
@given(
    at=st.integers(0, len(json.dumps(RICH))),
    cut=st.integers(0, 40),
    new=st.binary(max_size=12) | st.sampled_from([b"{", b"]", b'"', b"//", b"/*", b"\\u", b"1e9"]),
    name=st.sampled_from(["a.json", "a.jsonc"]),
)
def test_mutated_bytes_are_accepted_or_explained(at: int, cut: int, new: bytes, name: str) -> None:
    data = json.dumps(RICH).encode()
    load_bytes(data[:at] + new + data[at + cut :], name)


@settings(max_examples=80)
@given(st.lists(st.tuples(st.sampled_from(PATHS), TEXTS), max_size=3), TEXTS)
def test_any_override_is_accepted_or_explained(
    options: list[tuple[tuple[str | int, ...], str]], wild: str
) -> None:
    sets = [f"{'.'.join(map(str, path))}={value}" for path, value in options]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_text(json.dumps(RICH))
        with contextlib.suppress(SpecError):
            load(path, PlanOptions((*sets, wild)))


@settings(max_examples=80)
@given(VALUES)
def test_the_reader_agrees_with_the_standard_library(value: Any) -> None:
    text = json.dumps(value, indent=1)
    if "\\u0000" in text:
        with pytest.raises(jsonc.TextError):
            jsonc.read(text)
    else:
        assert jsonc.read(text).value == json.loads(text)


@settings(max_examples=80)
@given(st.text(alphabet='{}[]",:/*\\ \n019.eE+-truefalsn\u00e9\ud800', max_size=30))
def test_the_reader_accepts_exactly_what_the_standard_library_accepts(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda word: [][len(word)])
    except (ValueError, IndexError):
        with pytest.raises(jsonc.TextError):
            jsonc.read(text)
        return
    if "\ud800" in text or "\\u" in text or "e" in text.lower():
        return  # the library accepts surrogates and 1e999
    assert jsonc.read(text).value == expected
