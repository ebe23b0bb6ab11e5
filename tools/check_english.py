"""Reports docstrings that open with a fragment, and banned words in messages and documents.

A docstring's first line must stand alone: "Return …", "The state of …", never "Of a node that …".
BANNED lists a plain word for each banned one. `make check` runs this.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("launcher/tfcluster", "workers/tfcluster_workers")
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    ".github",
    "skills",
    "docs",
    "benchmarks/README.md",
    "cluster_specs/README.md",
)

_OPENS_WITH_FRAGMENT = re.compile(
    r"(Of|Those|Whom?|Whose|What|As|Where|Whether|Why|How|Which|For|From|To|With|Without|In|On|At|By"
    r"|Only|Also|Until|Unless|If|When|Empty|It|Its|Here|There|None|Itself|Them|They|The same"
    r"|This one)\b(?![.'’-]\w)"
)

BANNED = {
    "mended": "patched, fixed",
    "mends": "patches, fixes",
    "drawn data": "synthetic data",
    "surroundings": "environment",
    "rehearsed": "injected",
    "rehearsal": "fault injection",
    "ready job": "example job",
    "loop of one's own": "custom training loop",
    "befalls?": "affects, happens to",
    "whoever": "say who",
    "whomever": "say who",
    "brings home": "gathers",
    "is succeeded": "succeeded",
    "no value of JSON": "not valid JSON",
    "a fault in tfcluster": "internal error",
    "it would come again": "it would fail the same way",
    "nothing stands in the way": "All checks passed",
    "usual suspects": "likely causes",
    "is no age": "is not an age",
    "a text is expected": "expected a string",
    "what even so is left": "leftover containers",
    "signs that are meant as they are": "characters that are taken literally",
    "with a right TF_CONFIG": "with a correct TF_CONFIG",
    "again kills them": "press Ctrl-C again to kill them",
    "nobody above them": "no parent process",
    "it goes on\\.": "the run continues",
    "no run but with --all": "--all takes no run",
    "must change before a start": "must be fixed before the start",
    "keep what is imported for the next run": "keep imported modules for the next run",
    "two lines put its state where it is gathered": "two lines save its state",
    "show their lines, end with them": "show their output and stop when they end",
    "waits for the import of": "waits until … is imported",
    "begin with what RUN gathered": "resume from the checkpoints of RUN",
    "json: right": "json: OK",
}
_BANNED = re.compile(
    rf"(?<!\w)(?:{'|'.join(BANNED)})(?!\w)".replace(" ", r"\s+"),  # it may be wrapped
    re.IGNORECASE,
)


def main() -> int:
    found = sorted([*_in_sources(), *_in_documents()])
    for path, line, problem in found:
        sys.stdout.write(f"{path}:{line}: {problem}\n")
    if found:
        sys.stderr.write(f"found {len(found)}: tools/check_english.py lists the words to use\n")
    return 1 if found else 0


Problem = tuple[str, int, str]


def _in_sources() -> Iterator[Problem]:
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from problems_of_source(str(path.relative_to(ROOT)), path.read_text())


def problems_of_source(name: str, text: str) -> Iterator[Problem]:
    """Yield the problems of one Python file: file, line, what is wrong."""
    for line, docstring in _docstrings(ast.parse(text)):
        if _OPENS_WITH_FRAGMENT.match(docstring):
            first = docstring.splitlines()[0]
            yield name, line, f"the docstring opens with a fragment: {first[:60]!r}"
    yield from _banned(name, text)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, including those below constants and fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def _in_documents() -> Iterator[Problem]:
    for name in DOCUMENTS:
        path = ROOT / name
        for page in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
            yield from _banned(str(page.relative_to(ROOT)), page.read_text())


def _banned(name: str, text: str) -> Iterator[Problem]:
    for match in _BANNED.finditer(text):
        yield name, text.count("\n", 0, match.start()) + 1, f"{match[0]!r} is banned"


if __name__ == "__main__":
    sys.exit(main())
