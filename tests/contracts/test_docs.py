"""Links in the documentation have targets, and every example job has a page and a spec."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tfcluster.agent import budgets

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "*_specs/*.md", "skills/*/*.md")
    for page in ROOT.glob(pattern)
)
JOBS = ROOT / "workers/tfcluster_workers/jobs"
INDEX = ROOT / "docs/tutorials/index.md"
TOOLS = {"evaluate", "show_shards"}
"""Runnable modules that are tools, not example jobs: the pages of other jobs describe them."""
INNER_BUDGETS = {
    *("REPORT_TEXT", "REPORT_TRACEBACK", "REPORTED_CHECKPOINTS", "MESSAGE_TEXT", "MESSAGE_LIST"),
    "LISTED_BYTES",
}
"""Limits that no user reaches without reaching another one."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def without_code(page: Path) -> str:
    """Return a page's text without links and headings that are in code blocks or code spans."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda span: "`" + re.sub(r"[\[\](]", "", span[0][1:]), text)


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(without_code(page)) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """Return the valid targets of `#…`: headings as GitHub writes them, and every `<a id>`."""
    text = without_code(page)
    titles = [title.lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    headings = {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}
    return headings | set(re.findall(r'<a id="([^"]+)">', text))


def broken_links(page: Path) -> list[str]:
    found = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def runnable() -> set[str]:
    """Return the modules of `jobs` that `python -m` runs."""
    return {path.stem for path in JOBS.glob("*.py") if "\nif __name__ ==" in path.read_text()}


def specs_of(job: str) -> list[Path]:
    module = f"tfcluster_workers.jobs.{job}"
    specs = (ROOT / "cluster_specs").glob("*.json")
    return [path for path in specs if json.loads(path.read_text())["job"].get("module") == module]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_has_a_target(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text('# A `job`, or two\n<a id="x"></a>\n')
    page.write_text(
        "[a](other.md#a-job-or-two) [b](other.md#x) [c](#no) [d](gone.md) [e](other.md#y)\n"
        "[f](https://example.org/gone) `[g](code.md)`\n```\n[h](block.md)\n```\n"
    )

    assert broken_links(page) == ["#no", "gone.md", "other.md#y"]


def test_every_page_of_the_documentation_is_linked_from_another() -> None:
    named = {
        (page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)
    }
    assert len([page for page in PAGES if page.parent == INDEX.parent]) > 5
    unseen = [page for page in PAGES if "docs" in page.parts and page not in named]
    assert unseen == []


def test_every_picture_is_on_a_page_small_and_without_a_path_of_a_machine() -> None:
    named = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    pictures = [*(ROOT / "docs/pictures").iterdir()]
    assert len(pictures) > 3
    for picture in pictures:
        assert picture in named
        assert picture.stat().st_size < 300_000
        if picture.suffix == ".svg":
            assert not re.search(r"/(?:root|work|home)/", picture.read_text())


@pytest.mark.parametrize("job", sorted(runnable() - TOOLS))
def test_every_job_has_a_page_a_spec_and_a_line_in_the_index(job: str) -> None:
    assert (INDEX.parent / f"{job}.md").is_file()
    assert f"{job}.md" in links(INDEX)
    assert specs_of(job), f"no spec of cluster_specs/ runs {job}"


def test_every_spec_is_listed_in_the_readme() -> None:
    listed = set(re.findall(r"^\| `([^`]+)`", (ROOT / "cluster_specs/README.md").read_text(), re.M))
    assert listed == {path.name for path in (ROOT / "cluster_specs").glob("*.json*")}


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_tool_is_described_on_a_job_s_page(tool: str) -> None:
    assert tool in runnable()
    pages = [page for page in INDEX.parent.glob("*.md") if page != INDEX]
    assert any(f"tfcluster_workers.jobs.{tool}" in page.read_text() for page in pages)


def test_the_page_of_limits_has_every_budget_with_its_value() -> None:
    page = (ROOT / "docs/guides/limits.md").read_text()
    rows = [row for row in page.splitlines() if row[:2] == "| "]
    numbers = {number.replace(",", "") for row in rows for number in re.findall(r"\d[\d,]*", row)}
    for name, value in vars(budgets).items():
        if name.isupper() and not name.startswith("_") and name not in INNER_BUDGETS:
            units = (value, value / 1000, value / 1024, value / (1 << 20))
            shown = {f"{unit:.0f}" for unit in units if unit == int(unit)}
            assert shown & numbers, f"{name} = {value} is not in docs/guides/limits.md"
