"""Hooks of MkDocs: linked source files become pages, and Korean pages declare their language.

The documentation links source files by relative paths, so that the links work in a checkout, too.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_UPWARD_LINK = re.compile(r"(?<=\]\()((?:\.\./)+)([^)#\s]+)")
_LANGUAGES = {".py": "python", ".json": "json", ".md": "markdown"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the addresses from pyproject.toml, once their owner is filled in.

    `repo_url` is not used: the theme would ask GitHub for numbers about it on every page.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    address = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    if "OWNER" not in address["repository"]:
        if "TFCLUSTER_DOCS_URL" not in os.environ:
            config.site_url = address["documentation"]
        link = {"icon": "fontawesome/brands/github", "link": address["repository"]}
        config.extra["social"] = [link]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each source file that the documentation links."""
    found = {
        path
        for page in files.documentation_pages()
        for link in _UPWARD_LINK.finditer(page.content_string)
        if (path := _source(page, link)) and (ROOT / path).is_file()
    }
    for path in sorted(found):
        files.append(_page_of_source(path, config))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to source files lead to their pages."""

    def replace(link: re.Match[str]) -> str:
        path = _source(page.file, link)
        return f"{'../' * _depth(page.file)}source/{path}.md" if path else link[0]

    return _UPWARD_LINK.sub(replace, markdown)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Name the language of a Korean page for browsers and screen readers."""
    if page.file.src_uri.startswith("ko/"):
        return output.replace('<html lang="en"', '<html lang="ko"', 1)
    return output


def _source(page: File, link: re.Match[str]) -> str | None:
    """Return the path in the repository if the link leaves the documentation."""
    return link[2] if link[1].count("/") == _depth(page) + 1 else None


def _depth(page: File) -> int:
    return page.src_uri.count("/")


def _page_of_source(path: str, config: MkDocsConfig) -> File:
    language = _LANGUAGES.get(Path(path).suffix, "text")
    text = (ROOT / path).read_text(encoding="utf-8")
    head = f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n"
    content = f"{head}\n`````{language}\n{text}`````\n"
    not_in_nav = InclusionLevel.NOT_IN_NAV
    return File.generated(config, f"source/{path}.md", content=content, inclusion=not_in_nav)
