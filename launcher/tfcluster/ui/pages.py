"""The documentation as it is installed: pages of ``docs/``, read page by page or by section."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfcluster.errors import SurroundingsError, UsageError

_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')


def topic(place: str) -> str:
    """What `tfcluster help` takes for a place: ``docs/failures.md#late`` → ``failures#late``."""
    name, hash_sign, anchor = place.partition("#")
    return name.removeprefix("docs/").removesuffix(".md") + hash_sign + anchor


def folder() -> Path:
    """Where the pages are: in the wheel, or in the source tree.

    Raises SurroundingsError for an installation without them.
    """
    package = Path(__file__).parents[1]
    for candidate in (package / "docs", package.parents[1] / "docs"):
        if (candidate / "failures.md").is_file():
            return candidate
    message = "the documentation is missing from this installation"
    raise SurroundingsError(message, fix="install tfcluster again")


def titles() -> dict[str, str]:
    """Page → its title, by name."""
    root = folder()
    pages = ((topic(path.relative_to(root).as_posix()), path) for path in root.rglob("*.md"))
    return {name: _title(path) for name, path in sorted(pages)}


def read(wanted: str) -> str:
    """The page or section called `wanted` (``failures#late``), as Markdown.

    Raises UsageError for a page or a section that is not there.
    """
    name, _, anchor = topic(wanted).partition("#")
    known = titles()
    if name not in known:
        raise UsageError(f"no page is called {name!r}", fix=_fix(name, known, "`tfcluster help`"))
    text = (folder() / f"{name}.md").read_text(encoding="utf-8")
    if not anchor:
        return _ANCHOR.sub("", text)
    found = {one: heading for heading in _headings(text) for one in heading.anchors}
    if anchor not in found:
        fix = _fix(anchor, found, f"`tfcluster help {name}`")
        raise UsageError(f"the page {name!r} has no section {anchor!r}", fix=fix)
    return _section(text, found[anchor])


def _fix(given: str, known: Iterable[str], everything: str) -> str:
    import difflib  # only for a mistake: `status` imports this module, too

    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{everything} shows what there is"


@dataclass(frozen=True, slots=True)
class _Heading:
    """One heading of a page: its line from 0, its level, the names a link may use for it."""

    line: int
    level: int
    anchors: frozenset[str]


def _headings(text: str) -> Iterator[_Heading]:
    """In order; a ``#`` inside a block of code is none."""
    is_code, named = False, set[str]()
    for number, line in enumerate(text.splitlines()):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code:
            named |= set(_ANCHOR.findall(line))
            if match := re.match(r"(#+) (.*)", line):
                # As GitHub makes it from the words.
                own = re.sub(r"[^\w\- ]", "", match[2].lower()).strip().replace(" ", "-")
                yield _Heading(number, len(match[1]), frozenset({own, *named}))
                named = set()


def _section(text: str, start: _Heading) -> str:
    """From its heading up to the next one of its level or above."""
    later = (one for one in _headings(text) if one.line > start.line and one.level <= start.level)
    end = next(later, None)
    lines = text.splitlines()[start.line : end.line if end else None]
    return _ANCHOR.sub("", "\n".join(lines)).strip() + "\n"


def _title(page: Path) -> str:
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").replace("`", "")
