"""The documentation site builds without a warning, and works without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tfcluster.ui import pages

ROOT = Path(__file__).parents[2]
REMOTE = re.compile(r"(?:src=|<link[^>]* href=|url\(|@import )[\"']?(?:https?:)?//[^\"')\s]+")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "TFCLUSTER_DOCS_URL": ""},
        text=True,
        capture_output=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    yield driver
    driver.quit()


def log(browser: webdriver.Chrome, kind: str) -> list[dict[str, str]]:
    """Return the lines that the browser has logged since the last call."""
    return list(browser.get_log(kind))  # type: ignore[no-untyped-call]


def requests(browser: webdriver.Chrome) -> set[str]:
    """Return the addresses that were requested since the last call."""
    messages = [json.loads(line["message"])["message"] for line in log(browser, "performance")]
    sent = (one["params"] for one in messages if one["method"] == "Network.requestWillBeSent")
    return {one["request"]["url"] for one in sent}


def test_every_page_of_the_documentation_is_on_the_site(site: Path) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        assert (site / path.relative_to(ROOT / "docs").with_suffix(".html")).is_file()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    found = {
        f"{path.relative_to(site)}: {hit[:100]}"
        for suffix in ("html", "css", "svg")
        for path in site.rglob(f"*.{suffix}")
        for hit in REMOTE.findall(path.read_text())
    }
    assert found == set()


@pytest.mark.parametrize("page", ["index", "architecture", "reference/api", "ko/index"])
def test_a_page_opened_as_a_file_requests_only_files(
    site: Path, browser: webdriver.Chrome, page: str
) -> None:
    requests(browser)
    browser.get(f"file://{site}/{page}.html")

    asked = requests(browser)
    assert {address.partition(":")[0] for address in asked} <= {"file", "data", "blob"}
    assert any(address.endswith(f"{page}.html") for address in asked)
    assert [line["message"] for line in log(browser, "browser")] == []


@pytest.mark.parametrize(
    ("words", "page"), [("learning rate", "batch-and-learning-rate.html"), ("체크포인트", "/ko/")]
)
def test_search_works_without_a_server(
    site: Path, browser: webdriver.Chrome, words: str, page: str
) -> None:
    browser.get(f"file://{site}/index.html")
    browser.execute_script("document.querySelector('[data-md-toggle=search]').click()")
    field = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    field.send_keys(words)

    def found(_: object) -> list[str]:
        hits = browser.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
        return [hit.get_attribute("href") or "" for hit in hits]

    assert any(page in address for address in WebDriverWait(browser, 30).until(found))


def test_korean_pages_declare_their_language_and_the_header_links_them(site: Path) -> None:
    assert '<html lang="ko"' in (site / "ko/index.html").read_text()
    assert '<html lang="en"' in (site / "index.html").read_text()
    assert 'href="ko/index.html" hreflang="ko"' in (site / "index.html").read_text()


def test_anchors_of_the_site_are_those_that_help_prints(site: Path) -> None:
    """GitHub, the site and `tfcluster help` find a section under the same name."""
    for name in ("failures", "architecture", "guides/hosts", "ko/index"):
        text = (pages.folder() / f"{name}.md").read_text()
        html = (site / f"{name}.html").read_text()
        headings = set(re.findall(r"<h[2-4] id=\"([^\"]+)\"", html))
        assert headings
        assert headings <= set(pages.sections(text))
