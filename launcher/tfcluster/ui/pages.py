"""The installed documentation: finds the pages of ``docs/`` and reads a page or a section."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tfcluster.errors import SetupError, UsageError

_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_FOLDERS = r"(?:docs/)?(?:(?:guides|reference|tutorials)/(?!index\b))?"
_FILE = re.compile(rf"{_FOLDERS}(.+?)(?:/index)?(?:\.md)?")


def topic(place: str) -> str:
    """Return the argument of `tfcluster help`: ``docs/guides/hosts.md#keys`` → ``hosts#keys``.

    Pages have the names of their files; a folder's index has the name of the folder.
    """
    file, hash_sign, anchor = place.partition("#")
    match = _FILE.fullmatch(file)
    return (match[1] if match else file) + hash_sign + anchor


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
    return {name: _title(path) for name, path in _files().items()}


def read(place: str) -> str:
    """Return the page or section called `place` (``failures#late``), as Markdown.

    Raises UsageError for an unknown page or section.
    """
    name, _, anchor = topic(place).partition("#")
    known = _files()
    if name not in known:
        fix = _suggest(name, known, "`tfcluster help` lists the pages")
        raise UsageError(f"no page is called {name!r}", fix=fix)
    text = known[name].read_text(encoding="utf-8")
    if not anchor:
        return _ANCHOR.sub("", text)
    found = sections(text)
    if anchor not in found:
        fix = _suggest(anchor, found, f"`tfcluster help {name}` prints the whole page")
        raise UsageError(f"the page {name!r} has no section {anchor!r}", fix=fix)
    return found[anchor]


def _files() -> dict[str, Path]:
    """Return page → file, sorted by page."""
    root = folder()
    files = ((topic(path.relative_to(root).as_posix()), path) for path in root.rglob("*.md"))
    return dict(sorted(files))


def _suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    import difflib  # only needed after a mistake, and `status` imports this module

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def sections(text: str) -> dict[str, str]:
    """Return the sections of a page, each under all anchors of links to it.

    A section ends at the next heading of its level or above; a ``#`` in a code block is none.
    """
    lines, is_code, anchors = text.splitlines(), False, set[str]()
    headings: list[tuple[int, int, set[str]]] = []
    for number, line in enumerate(lines):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code:
            anchors |= set(_ANCHOR.findall(line))
            if match := re.match(r"(#+) (.*)", line):
                # GitHub's rule for the anchor of a heading.
                slug = re.sub(r"[^\w\- ]", "", match[2].lower()).strip().replace(" ", "-")
                headings.append((number, len(match[1]), {slug, *anchors}))
                anchors = set()
    sections = dict[str, str]()
    for place, (start, level, names) in enumerate(headings, 1):
        end = next((at for at, other, _ in headings[place:] if other <= level), None)
        section = _ANCHOR.sub("", "\n".join(lines[start:end])).strip() + "\n"
        sections |= dict.fromkeys(names, section)
    return sections


def _title(page: Path) -> str:
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").replace("`", "")
