"""The README as an index page shows it, and its links to files of the release."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

from tfcluster.ui import pages

from . import archives
from .commands import ROOT, Failed
from .publishing import address, version


def check_readme() -> str:
    """Render the README of the wheel as the index does, and check every link. Raises Failed."""
    from readme_renderer import markdown  # only `.venv-release` has it

    html = markdown.render(archives.readme(archives.wheel()))
    if not html:
        raise Failed("README.md: the index cannot render it")
    if problems := [*broken(html)]:
        raise Failed("\n".join(problems))
    return f"{len(links(html))} links and pictures, 0 broken"


def links(html: str) -> list[str]:
    """Return the targets of all links and pictures of a page."""
    found = list[str]()

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            name = {"a": "href", "img": "src"}.get(tag)
            found.extend(value for key, value in attrs if key == name and value)

    Links().feed(html)
    return found


def broken(html: str) -> Iterator[str]:
    """Yield a sentence for each link that leads nowhere once the release's tag is published."""
    repository, documentation = address()
    for link in links(html):
        place, _, anchor = link.partition("#")
        if not place and f'id="{anchor}"' in html:
            continue
        if not place.startswith("https://"):
            yield f"{link}: not an absolute address"
        elif place.startswith(repository):
            tag, _, path = place.removeprefix(f"{repository}/").partition("/")[2].partition("/")
            if tag != f"v{version()}":
                yield f"{link}: not of the tag v{version()}"
            yield from _problems(link, path, anchor)
        elif place.startswith(documentation):
            page = place.removeprefix(documentation).removesuffix(".html") or "index"
            yield from _problems(link, f"docs/{page}.md", anchor)


def _problems(link: str, path: str, anchor: str) -> Iterator[str]:
    file = ROOT / path
    if not file.is_file():
        yield f"{link}: there is no file {path}"
    elif anchor and anchor not in pages.sections(file.read_text(encoding="utf-8")):
        yield f"{link}: {path} has no section {anchor}"
