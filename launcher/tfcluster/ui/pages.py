"""The installed documentation: finds the pages of ``docs/`` and reads a page or a section."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from tfcluster.errors import SetupError, UsageError

_PACKAGE = Path(__file__).parents[1]
_CHECKOUT = _PACKAGE.parents[1] / "docs"
"""The pages of a checkout, whose package is `launcher/tfcluster`."""
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n\n", re.MULTILINE)
_FOLDERS = r"(?:docs/)?(?:(?:guides|reference|tutorials)/(?!index\b))?"
_FILE = re.compile(rf"{_FOLDERS}(.+?)(?:/index)?(?:\.md)?")


def topic(place: str) -> str:
    """Return the argument of `tfcluster help`: ``docs/guides/hosts.md#keys`` → ``hosts#keys``.

    Pages have the names of their files; a folder's index has the name of the folder.
    """
    file, hash_sign, anchor = place.partition("#")
    match = _FILE.fullmatch(file)
    return (match[1] if match else file) + hash_sign + anchor


def reference(place: str) -> str:
    """Return where a user finds ``docs/failures.md#late``: a URL, a file, or a command.

    A URL if the documentation is published: ``$TFCLUSTER_DOCS_URL``, or the package's project URL
    "Documentation". A file if the current folder is in a checkout, else ``tfcluster help``.
    """
    file, hash_sign, anchor = place.removeprefix("docs/").partition("#")
    if base := os.environ.get("TFCLUSTER_DOCS_URL") or _published():
        return f"{base.rstrip('/')}/{file.removesuffix('.md')}.html{hash_sign}{anchor}"
    with contextlib.suppress(FileNotFoundError):  # the current folder was deleted
        if _CHECKOUT.is_dir() and Path.cwd().is_relative_to(_CHECKOUT.parent):
            return os.path.relpath(_CHECKOUT / file) + hash_sign + anchor
    return f"`tfcluster help {topic(place)}`"


def _published() -> str | None:
    """Return the documentation's address in the wheel; None in a checkout: it has the pages."""
    if _CHECKOUT.is_dir():
        return None
    from importlib import metadata  # only needed for a failure, and `status` imports this module

    try:
        urls = metadata.metadata("tfcluster").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # run from sources that are not installed
        return None
    pairs = (url.partition(", ") for url in urls)
    return next((url for name, _, url in pairs if name == "Documentation"), None)


def folder() -> Path:
    """Return the folder of the pages, in the wheel or in the source tree.

    Raises SetupError if the installation has none.
    """
    for candidate in (_PACKAGE / "docs", _CHECKOUT):
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
    text = _PICTURE.sub("", known[name].read_text(encoding="utf-8"))
    if not anchor:
        return _ANCHOR.sub("", text)
    by_anchor = sections(text)
    if anchor not in by_anchor:
        fix = _suggest(anchor, by_anchor, f"`tfcluster help {name}` prints the whole page")
        raise UsageError(f"the page {name!r} has no section {anchor!r}", fix=fix)
    return by_anchor[anchor]


def _files() -> dict[str, Path]:
    """Return page → file, sorted by page."""
    root = folder()
    files = ((topic(path.relative_to(root).as_posix()), path) for path in root.rglob("*.md"))
    return dict(sorted(files))


def _suggest(name: str, known: Iterable[str], otherwise: str) -> str:
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
