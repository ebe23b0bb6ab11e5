"""One server and one browser for the tests of a file, which check what the browser complains of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.browser import Browser, browser
from tests.integration.commandline import CommandLine

from .site import Page, Site, command_line, serve


@pytest.fixture(scope="module")
def line() -> Iterator[CommandLine]:
    with command_line() as found:
        yield found


@pytest.fixture(scope="module")
def site(line: CommandLine) -> Iterator[Site]:
    with serve(line) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def page(chromium: Browser, site: Site) -> Iterator[Page]:
    """A page after the login; fails the test in which a script failed or a rule was broken.

    The test before may have left the page of a server that has ended meanwhile.
    """
    chromium.leave()
    found = Page(chromium, site)
    found.resize(1280)
    yield found
    found.assert_clean()
