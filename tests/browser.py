"""Headless Chromium for tests of pages: it collects console messages and requests.

It is Debian's chromium with its chromedriver; a missing one fails the test.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

_LOAD_LIMIT_S = 200
_MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Browser:
    """A browser with one tab. `driver` is selenium's."""

    driver: webdriver.Chrome
    _console: list[str] = field(default_factory=list)
    _requests: list[str] = field(default_factory=list)

    def open(self, url: str) -> None:
        self.driver.get(url)

    def leave(self) -> None:
        """Leave the page that is open; forget what the console said, and the requests."""
        self.open("about:blank")
        for seen in (self.console, self.requests):
            seen.clear()

    def script(self, text: str, *arguments: Any) -> Any:
        """Return the value of the script's `return`."""
        return self.driver.execute_script(text, *arguments)

    @property
    def console(self) -> list[str]:
        """The warnings and errors of the console so far, with violations of the CSP."""
        for entry in self.driver.get_log("browser"):  # type: ignore[no-untyped-call]
            if entry["level"] in ("WARNING", "SEVERE"):
                self._console.append(entry["message"])
        return self._console

    @property
    def requests(self) -> list[str]:
        """The URLs of all requests so far, but those of Chromium itself."""
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(("data:", "blob:", "chrome:")):
                    self._requests.append(url)
        return self._requests


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator[Browser]:
    """Yield a browser whose page is `width` × `height` CSS pixels; `dark` prefers dark colours.

    Its profile is new. Leaving the block ends it and deletes the profile.
    """
    profile = tempfile.mkdtemp(prefix="tfc-chromium-")
    driver = None
    try:
        driver = _start(profile)
        driver.set_script_timeout(_LOAD_LIMIT_S)
        driver.set_page_load_timeout(_LOAD_LIMIT_S)
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield Browser(driver)
    finally:
        if driver is not None:
            driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


def _start(profile: str) -> webdriver.Chrome:
    """Return a browser. Another process may take the port that selenium found for chromedriver."""
    for _ in range(_MOST_TRIES - 1):
        with contextlib.suppress(WebDriverException):
            return webdriver.Chrome(_options(profile), Service(_program("chromedriver")))
    return webdriver.Chrome(_options(profile), Service(_program("chromedriver")))


def _options(profile: str) -> Options:
    options = Options()
    options.binary_location = _program("chromium")
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", f"--user-data-dir={profile}"),
        "about:blank",  # not its start page, which makes requests
    ):
        options.add_argument(argument)
    logs = {"browser": "ALL", "performance": "ALL"}
    options.set_capability("goog:loggingPrefs", logs)
    return options


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed: apt-get install chromium chromium-driver"
    return found
