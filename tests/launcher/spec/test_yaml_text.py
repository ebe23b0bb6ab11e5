"""Specs in YAML: the same values and the same errors as in JSON, with places."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.cli import init
from tfcluster.errors import SpecError
from tfcluster.spec import published_schema
from tfcluster.spec.jsonc import TextError
from tfcluster.spec.load import load
from tfcluster.spec.source import find_default
from tfcluster.spec.templates import templates
from tfcluster.spec.yaml_text import read as read_yaml

from .writing import problems_of

TEMPLATES = templates()
HEAD_YAML = "cluster: {worker: 2}\n"

# (the file with § where the mistake is, a part of the message, a part of the fix)
YAML = {
    "unknown key": (
        f"{HEAD_YAML}§stratgy: {{}}\njob: {{script: t.py}}",
        "unknown key 'stratgy'",
        '"strategy"',
    ),
    "a wrong value": (f"{HEAD_YAML}job:\n  script: §3\n", "job.script: expected a string", '"3"'),
    "a wrong item": (
        f"{HEAD_YAML}job:\n  script: t.py\n  args:\n  - --lr\n  - §0.1\n",
        "job.args.1: expected a string, not 0.1",
        '"0.1"',
    ),
    "a missing section": (f"§{HEAD_YAML}", '"job" is missing', '{"script": "train.py"}'),
    "a list": ("§- 1", "a spec must be an object", '{"cluster"'),
    "only a comment": ("§# two workers\n", "a spec must be an object", '{"cluster"'),
    "a key twice": (
        f"{HEAD_YAML}job: {{script: t.py}}\n§job: {{script: u.py}}\n",
        "the key 'job' is written twice",
        "keep one",
    ),
    "yes": ("a: §yes", "'yes' is true or false in YAML 1.1", "true or false"),
    "on as a key": ("§on: 1", "'on' is true or false in YAML 1.1", "quotes"),
    "off": ("a: [§Off]", "'Off' is true or false", "quotes"),
    "an octal number": ("a: §0755", "'0755' is a number to the base", "decimal"),
    "an octal number of 1.2": ("a: §0o755", "'0o755' is a number to the base", "decimal"),
    "a hexadecimal number": ("a: §0xff", "'0xff' is a number to the base", "decimal"),
    "a time": ("a: §12:30", "'12:30' is a number to the base of 60", "quotes"),
    "a longer time": ("a: §12:30:45", "to the base of 60", "quotes"),
    "a number with an exponent": ("a: §1e3", "'1e3' is a number or a word", "quotes"),
    "underscores": ("a: §1_000", "'1_000' is a number or a word", "12"),
    "a fraction without 0": ("a: §.5", "'.5' is a number or a word", "0.5"),
    "infinity": ("a: §-.inf", "not a finite number", "finite"),
    "too large a float": ("a: §1.0e+999", "not a finite number", "finite"),
    "too many digits": (f"a: §{'9' * 5000}", "too many digits", "at most"),
    "a number as a key": ("a: {§10: 1}", "the key 10 is not a string", "quotes"),
    "a list as a key": ("§[a]: 1", "a key must be a string", "key: value"),
    "a merge": ("b: &b {c: 1}\na:\n  §<<: *b", "'<<' (a merge) is not supported", "write the keys"),
    "a tag": ("a: §!!python/name:os.system x", "tags such as", "remove the tag"),
    "a tag of a collection": ("a: §!!set {b}", "tags such as", "remove the tag"),
    "binary data": ("a: §!!binary aGk=", "tags such as", "remove the tag"),
    "an alias to nothing": ("a: §*b", "undefined alias", "indentation"),
    "a tab": ("a:\n§\tb: 1", "not valid YAML", "not with tabs"),
    "a bracket that is not closed": ("a: [1, 2\nb§: 1", "not valid YAML", "quotes"),
    "two documents": ("a: 1\n§---\nb: 2", "single document", "remove the part after ---"),
    "a colon in a text": ("a: b§: c", "mapping values are not allowed", "in quotes"),
    "NUL": ('a: §"\\0"', "cannot be passed", "remove it"),
    "half a character": ('a: §"\\ud800"', "surrogate", "write the character"),
    "a control character": ("a: §\x07", "'\\x07' is not allowed", "remove it"),
    "a list in itself": ("a: &a [*a]", "nested more than 64 levels", "fewer levels"),
    "too deep": ("§" + "[" * 3000, "nested more than 64 levels", "fewer levels"),
}  # fmt: skip


@pytest.mark.parametrize(("marked", "message", "fix"), YAML.values(), ids=YAML)
def test_a_mistake_has_its_place_a_message_and_a_fix(
    marked: str, message: str, fix: str, tmp_path: Path
) -> None:
    text = marked.replace("§", "")
    found = problems_of(text, tmp_path, name="a.yaml")[0]
    before = marked.partition("§")[0] if "§" in marked else None
    if before is not None:
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        assert found.place == f"a.yaml:{line}:{column}"
    assert message in found.message
    assert fix in found.fix


@pytest.mark.parametrize("ending", ["yaml", "yml"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_is_the_same_spec_in_each_format(
    name: str, ending: str, tmp_path: Path
) -> None:
    text = init.adapt(TEMPLATES[name].read_text())
    (tmp_path / "a.json").write_text(text)
    other = init.format_spec(json.loads(text), f".{ending}")
    (tmp_path / f"a.{ending}").write_text(other)
    expected = load(tmp_path / "a.json").spec.model_copy(update={"schema_file": None})
    assert load(tmp_path / f"a.{ending}").spec == expected
    assert f"{init.SCHEMA_FOLDER}/{published_schema.SCHEMA_FILE}" in other.splitlines()[0]


def test_yaml_words_are_strings_where_both_versions_agree() -> None:
    text = "a: 10.0.0.1:2222\nb: 12h\nc: 2026-01-01\nd: ~\ne:\nf: -3\ng: 1.0e-3\nh: !!str 0755\n"
    text += "i: 'yes'\nj: \"1e3\"\nk: True\nl: nvidia/cuda:12.2\nm: --lr\no: host:22\n"
    assert read_yaml(text).value == {
        "a": "10.0.0.1:2222", "b": "12h", "c": "2026-01-01", "d": None, "e": None, "f": -3,
        "g": 0.001, "h": "0755", "i": "yes", "j": "1e3", "k": True, "l": "nvidia/cuda:12.2",
        "m": "--lr", "o": "host:22",
    }  # fmt: skip


def test_an_alias_repeats_a_value_but_a_bomb_is_refused() -> None:
    assert read_yaml("x-gpus: &g [0, 1]\na: *g\n").value["a"] == [0, 1]
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(TextError, match="more than 100,000 values"):
        read_yaml("\n".join(["l0: &l0 lol", *levels]))
    doubled = [f"l{n}: &l{n} {{{', '.join([f'k: *l{n - 1}'] * 9)}}}" for n in range(1, 9)]
    with pytest.raises(TextError, match="more than 100,000 values"):
        read_yaml("\n".join(["l0: &l0 lol", *doubled]))


@pytest.mark.parametrize("ending", ["json", "jsonc", "yaml", "yml"])
def test_the_default_spec_may_have_any_format(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = {"cluster": {"worker": 3}, "job": {"script": "t.py"}}
    Path(f"tfcluster.{ending}").write_text(init.format_spec(spec, f".{ending}"))
    loaded = load()
    assert (loaded.spec.task_count, loaded.path) == (3, tmp_path / f"tfcluster.{ending}")
    Path("tfcluster.json" if ending != "json" else "tfcluster.yaml").touch()
    with pytest.raises(SpecError, match="this folder has tfcluster"):
        load()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=4))
def test_yaml_that_pyyaml_writes_is_read_back(value: Any) -> None:
    text = yaml.safe_dump(value, default_flow_style=None)
    with contextlib.suppress(TextError):  # NUL; and PyYAML writes 1e+30 without a point
        assert read_yaml(text).value == value


FRAGMENTS = st.sampled_from([
    *("a", "b.c", '"d e"', "'f'", " = ", "=", "1", "0.5", "true", '"""x"""', "'''y'''", "'z'"),
    *("[", "]", "[[", "]]", "{", "}", ",", "\n", "# c\n", " ", ": ", "- ", "*x", "&x ", "\t"),
    *("!!str ", "|\n", "? ", "\r\n", "2026-01-01", "1e9", "\\", '"', "'", "\0", "%", "@", "---\n"),
])  # fmt: skip


def every_path(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list) else ()  # fmt: skip
    return [path, *(found for key, child in inner for found in every_path(child, (*path, key)))]


@settings(max_examples=300)
@given(st.lists(FRAGMENTS, max_size=14).map("".join))
def test_any_text_is_read_with_all_places_or_refused(text: str) -> None:
    with contextlib.suppress(TextError):
        document = read_yaml(text)
        for path in every_path(document.value):
            assert 0 <= document.values[path] <= len(text)


def test_a_spec_in_toml_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    spec = tmp_path / "train 1.toml"
    spec.write_text("cluster.worker = 2\n[job]\nscript = 't.py'\n")
    with pytest.raises(SpecError, match="a spec cannot be TOML, only JSON or YAML") as refused:
        load(spec)
    command = refused.value.problems[0].fix.partition(": ")[2]
    subprocess.run(command, shell=True, check=True)
    assert load(tmp_path / "train 1.json").spec.task_count == 2
    (tmp_path / "tfcluster.toml").touch()
    assert find_default(tmp_path) == Path("tfcluster.toml")
