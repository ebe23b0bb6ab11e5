"""The installed documentation: finds the pages of ``docs/`` and reads a page or a section."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfcluster.errors import SetupError, UsageError

_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')


def topic(place: str) -> str:
    """Return the argument of `tfcluster help`: ``docs/failures.md#late`` → ``failures#late``."""
    name, hash_sign, anchor = place.partition("#")
    return name.removeprefix("docs/").removesuffix(".md") + hash_sign + anchor


def folder() -> Path:
    """Return the folder of the pages, in the wheel or in the source tree.

    Raises SetupError if the installation has none.
    """
    package = Path(__file__).parents[1]
    for candidate in (package / "docs", package.parents[1] / "docs"):
        if (candidate / "failures.md").is_file():
            return candidate
    message = "the documentation is missing from this installation"
    raise SetupError(message, fix="reinstall tfcluster")


def titles() -> dict[str, str]:
    """Return page → title, sorted by page."""
    root = folder()
    pages = ((topic(path.relative_to(root).as_posix()), path) for path in root.rglob("*.md"))
    return {name: _title(path) for name, path in sorted(pages)}


def read(place: str) -> str:
    """Return the page or section called `place` (``failures#late``), as Markdown.

    Raises UsageError for an unknown page or section.
    """
    name, _, anchor = topic(place).partition("#")
    known = titles()
    if name not in known:
        fix = _suggest(name, known, "`tfcluster help` lists the pages")
        raise UsageError(f"no page is called {name!r}", fix=fix)
    text = (folder() / f"{name}.md").read_text(encoding="utf-8")
    if not anchor:
        return _ANCHOR.sub("", text)
    sections = {anchor: heading for heading in _headings(text) for anchor in heading.anchors}
    if anchor not in sections:
        fix = _suggest(anchor, sections, f"`tfcluster help {name}` prints the whole page")
        raise UsageError(f"the page {name!r} has no section {anchor!r}", fix=fix)
    return _section(text, sections[anchor])


def _suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    import difflib  # only needed after a mistake, and `status` imports this module

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


@dataclass(frozen=True, slots=True)
class _Heading:
    """A heading of a page: its line number from 0, its level, and the anchors of links to it."""

    line: int
    level: int
    anchors: frozenset[str]


def _headings(text: str) -> Iterator[_Heading]:
    """Yield the headings of a page in order; a ``#`` in a code block is not a heading."""
    is_code, anchors = False, set[str]()
    for number, line in enumerate(text.splitlines()):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code:
            anchors |= set(_ANCHOR.findall(line))
            if match := re.match(r"(#+) (.*)", line):
                # GitHub's rule for the anchor of a heading.
                slug = re.sub(r"[^\w\- ]", "", match[2].lower()).strip().replace(" ", "-")
                yield _Heading(number, len(match[1]), frozenset({slug, *anchors}))
                anchors = set()


def _section(text: str, start: _Heading) -> str:
    """Return the text from `start` up to the next heading of its level or above."""
    ends = (h for h in _headings(text) if h.line > start.line and h.level <= start.level)
    end = next(ends, None)
    lines = text.splitlines()[start.line : end.line if end else None]
    return _ANCHOR.sub("", "\n".join(lines)).strip() + "\n"


def _title(page: Path) -> str:
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").replace("`", "")
