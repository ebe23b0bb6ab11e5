"""The documentation site builds without a warning, and works without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from tests.browser import Browser, browser

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
        timeout=250,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


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


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve the site on loopback."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("page", ["index", "architecture", "reference/api", "ko/index"])
def test_a_page_asks_no_other_host_and_logs_no_error(
    address: str, chromium: Browser, page: str
) -> None:
    chromium.open(f"{address}/{page}.html")

    assert f"{address}/{page}.html" in chromium.requests
    assert [url for url in chromium.requests if not url.startswith(f"{address}/")] == []
    assert chromium.console == []


@pytest.mark.parametrize(
    ("words", "page"), [("learning rate", "batch-and-learning-rate.html"), ("체크포인트", "/ko/")]
)
def test_search_works_without_a_server(
    site: Path, chromium: Browser, words: str, page: str
) -> None:
    chromium.open(f"file://{site}/index.html")
    chromium.script("document.querySelector('[data-md-toggle=search]').click()")
    chromium.driver.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys(words)

    def found(_: object) -> list[str]:
        hits = chromium.driver.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
        return [hit.get_attribute("href") or "" for hit in hits]

    assert any(page in address for address in WebDriverWait(chromium.driver, 60).until(found))


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
