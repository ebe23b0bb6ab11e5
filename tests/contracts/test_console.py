"""Every block of the documentation is checked: commands are parsed, outputs compared."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.documentation import DOCS, ROOT, Block, blocks

from tfcluster.cli.main import cli
from tfcluster.errors import SpecError
from tfcluster.spec import PlanOptions
from tfcluster.spec.jsonc import read
from tfcluster.spec.load import load

PAGES = [
    *sorted({*DOCS.rglob("*.md")} - {DOCS / "benchmarks.md"}),  # tests/benchmarks checks that one
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "cluster_specs/README.md")),
    *ROOT.glob("skills/*/SKILL.md"),
]
KOREAN = sorted((DOCS / "ko").glob("*.md"))
BLOCKS = [block for page in PAGES if page not in KOREAN for block in blocks(page)]
KINDS = {"console", "output", "python", "json", "jsonc", "yaml", "diff", "text", "sh", "toml"}
OTHER_PROGRAMS = {
    *("docker", "docker-compose", "kubectl", "sbatch", "salloc"),
    *("cat", "eval", ".", "cd", "ssh", "git", "pip", "uv", ".ci/run"),
}
"""Programs that are not ours, whose options no test knows."""
FILES = {
    **dict.fromkeys(
        ("train.json", "train.yaml", "tfcluster.json"),
        '{"cluster": {"worker": 2}, "job": {"script": "train.py"}}',
    ),
    **dict.fromkeys(("train.py", "lab", "requirements.txt"), ""),
}
"""The files that the pages' commands name, beside `cluster_specs/`."""


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line, without redirections and variables."""
    words = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    words.whitespace_split = True
    command = list[str]()
    for word in [*words, ";"]:
        if not set(word) <= set("&|;"):
            if command or not re.match(r"\w+=", word):
                command.append(word)
        elif command:
            yield command
            command = []


def check_line(line: str) -> None:
    """Fail unless the programs, options and files of a shell line exist."""
    for command in simple_commands(line):
        check(command)


def check(command: list[str]) -> None:
    program, *words = command
    if program == "tfcluster":
        check_tfcluster(words)
    elif program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words) <= targets
    elif Path(program).name in ("python", "python3", "pytest", "pre-commit", "mkdocs"):
        check_python(words)
    else:
        assert program in OTHER_PROGRAMS, f"unknown program {program}"


def check_python(words: list[str]) -> None:
    if words[:1] == ["-m"]:
        path = words[1].replace(".", "/")
        found = [ROOT / top / path for top in ("", "workers", "launcher")]
        assert any(one.with_suffix(".py").is_file() or one.is_dir() for one in found), words[1]


def check_tfcluster(words: list[str]) -> None:
    """Parse the words with the command's own parser, and read its spec with its overrides."""
    name, *rest = words
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    try:
        context = command.make_context(name, list(rest))
    except click.exceptions.Exit:  # `--help`, `--list`
        return
    specs = [word for word in rest if word.endswith((".json", ".jsonc", ".yaml", ".yml"))]
    sets = context.params.get("sets") or ()
    for spec in specs if name in ("up", "plan", "validate", "doctor", "join") else ():
        assert load(Path(spec), PlanOptions(tuple(sets)))
    if sets and not specs:
        load(Path("train.json"), PlanOptions(tuple(sets)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the files that the pages name."""
    shutil.copytree(ROOT / "cluster_specs", tmp_path / "cluster_specs")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    found = [block for block in BLOCKS if block.kind in kinds]
    return pytest.mark.parametrize("block", found, ids=str)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is_so_that_it_is_checked(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    if page.name != "api.md":  # indented lines are options of mkdocstrings there
        assert re.findall(r"(?<=\n\n)    \S.*", text) == [], "indented code is not checked"
    assert {block.kind for block in blocks(page)} <= KINDS


@of_kind("console")
def test_a_command_of_a_page_exists_with_its_options_and_files(block: Block, folder: Path) -> None:
    assert block.commands()
    assert block.others() == [], "what a command prints is a block of the kind `output`"
    for line in block.commands():
        check_line(line)


@of_kind("sh")
def test_a_script_of_a_page_is_valid_and_its_commands_exist(block: Block, folder: Path) -> None:
    subprocess.run(["sh", "-n"], input=block.text, text=True, check=True)
    commands = re.findall(r"^\s*(?:exec )?(tfcluster .*)", block.text, re.MULTILINE)
    assert commands
    for line in commands:
        check_line(line)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("tfcluster upp", "upp"),
        ("tfcluster up --no-such x.json", "No such option"),
        ("tfcluster up --set job.nothing=1 train.json", "nothing"),
        ("tfcluster up gone.json", "gone.json"),
        ("make gone", "gone"),
        ("echo a && rm -r b", "unknown program echo"),
        ("X=1 python -m tfcluster_workers.gone", "gone"),
    ],
)
def test_a_wrong_command_is_found(line: str, error: str, folder: Path) -> None:
    with pytest.raises((click.ClickException, SpecError, AssertionError), match=error):
        check_line(line)


@of_kind("python")
def test_python_of_a_page_compiles(block: Block) -> None:
    ast.parse(textwrap.dedent(re.sub(r"^( *)%.*", r"\1pass", block.text, flags=re.MULTILINE)))


@of_kind("json", "jsonc")
def test_json_of_a_page_is_valid(block: Block) -> None:
    if block.kind == "json":
        json.loads(block.text)
    else:
        read(block.text, comments=True)


@pytest.mark.parametrize("page", KOREAN, ids=lambda page: page.name)
def test_a_korean_page_has_the_blocks_of_the_english_one(page: Path) -> None:
    english = DOCS / ("index.md" if page.name == "index.md" else f"tutorials/{page.name}")
    shown = [(block.kind, block.text) for block in blocks(page)]
    assert shown == [(block.kind, block.text) for block in blocks(english)]


def test_every_output_of_a_page_is_compared_with_a_run() -> None:
    """`unprinted` compares a page with what its commands print, in tests that train anyway."""
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    compared = re.findall(r'unprinted\(\s*"([^"]+)",\s*"([^"]*)"', sources)
    shown = [block for block in BLOCKS if block.kind == "output"]
    calls = [(DOCS / page, having.replace("\\n", "\n")) for page, having in compared]
    unchecked = [
        str(block)
        for block in shown
        if not any(block.page == page and having in block.text for page, having in calls)
    ]
    assert unchecked == []
