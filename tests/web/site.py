"""The web page in a real browser: a server of its own, and what a user sees and does there."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from selenium.webdriver.common.action_chains import ActionChains
from tests.browser import Browser
from tests.integration.commandline import CommandLine, wait_for

CONTRAST = Path(__file__).with_name("contrast.js").read_text()
NAMES = Path(__file__).with_name("names.js").read_text()
OFFSCREEN = """
const inner = ".table-box:not(:has(#runs)), .log-view, pre, dialog, .hidden, .skip, .plot";
const within = (node) => node.closest(inner);
return [...document.querySelectorAll("body *")]
  .filter((node) => !within(node) && node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => node.outerHTML.slice(0, 80));
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A running `tfcluster ui`."""

    url: str
    """The printed URL, with its token."""
    home: Path

    @property
    def origin(self) -> str:
        return self.url.partition("/?")[0]


@contextlib.contextmanager
def serve(line: CommandLine, *options: str) -> Iterator[Site]:
    """Run `tfcluster ui` for the block; it ends like a user ends it."""
    said = line.root / f"ui-{time.monotonic_ns()}.txt"
    chosen = options if "--port" in options else ("--port", "0", *options)
    with said.open("wb") as out:
        process = line.start("ui", *chosen, stdout=out, stderr=out)

    def url() -> str:
        assert process.poll() is None, said.read_text()
        found = re.search(r"http://\S+token=\S+(?=\s)", said.read_text())
        return found[0] if found else ""

    try:
        yield Site(wait_for(url, what="the URL"), line.home)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


@contextlib.contextmanager
def command_line() -> Iterator[CommandLine]:
    """Yield a command line with a home of its own, as the fixture `shell` does, for a module."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    line = CommandLine(root)
    try:
        yield line
    finally:
        line.clean_up()
        shutil.rmtree(root)


class Link:
    """A TCP connection to the server that a test can cut; `site` is the server behind it."""

    def __init__(self, site: Site) -> None:
        self._server = ("127.0.0.1", int(site.origin.rpartition(":")[2]))
        self._open: list[socket.socket] = []
        self._is_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        # The server accepts only its own name, and the names have the same length.
        self._names = (b"127.0.0.1:%d" % self._listener.getsockname()[1], site.origin[7:].encode())
        url = site.url.replace(self._names[1].decode(), self._names[0].decode())
        self.site = Site(url, site.home)
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """End all connections and refuse new ones."""
        self._is_cut = True
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                if self._is_cut:
                    client.close()
                    continue
                server = socket.create_connection(self._server)
                self._open += (client, server)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                target.sendall(data.replace(*self._names))


@contextlib.contextmanager
def breakable(site: Site) -> Iterator[Link]:
    """Yield a link to the server that can be cut."""
    link = Link(site)
    try:
        yield link
    finally:
        link.close()


class Page:
    """A page in the browser, as a user reads and uses it."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self.browser, self.site = browser, site
        self.script = browser.script
        browser.open(site.url)

    def open(self, path: str) -> None:
        self.browser.open(self.site.origin + path)

    def open_run(self, run_id: str) -> None:
        self.open(f"/runs/{quote(run_id)}")
        self.wait("document.getElementById('status').textContent")

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver = self.browser.driver
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def wait(self, expression: str, *, timeout: float = 120) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        return wait_for(
            lambda: self.script(f"return {expression}"), timeout=timeout, what=expression
        )

    def text(self, selector: str) -> str:
        """Return the text that a user sees in the first element that `selector` finds."""
        return str(self.script("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)"
        return list(self.script(script, selector))

    def wait_for_text(self, selector: str, text: str, *, timeout: float = 120) -> None:
        found = f"(document.querySelector({json.dumps(selector)})?.innerText ?? '')"
        self.wait(f"{found}.includes({json.dumps(text)})", timeout=timeout)

    def click(self, selector: str) -> None:
        self.script("document.querySelector(arguments[0]).click()", selector)

    def type(self, *keys: str) -> None:
        """Press keys where the focus is."""
        ActionChains(self.browser.driver).send_keys(*keys).perform()

    def fill(self, selector: str, text: str) -> None:
        self.script(
            "const box = document.querySelector(arguments[0]); box.value = arguments[1];"
            "box.dispatchEvent(new Event('input')); box.dispatchEvent(new Event('change'))",
            selector,
            text,
        )

    def focused(self) -> str:
        """Return the id or the text of the element that has the focus."""
        return str(self.script("const a = document.activeElement; return a.id || a.innerText"))

    def settle(self) -> None:
        """Wait until what has arrived is drawn: charts are drawn a few times a second."""
        time.sleep(0.8)

    def assert_clean(self) -> None:
        """Check that nothing was refused, failed, or asked for elsewhere."""
        console = self.browser.console
        assert console == [], console
        foreign = [url for url in self.browser.requests if not url.startswith(self.site.origin)]
        assert foreign == [], foreign

    def assert_fits(self) -> None:
        """Check that the page does not scroll sideways, and that nothing is cut off."""
        self.script("document.activeElement.blur?.()")
        time.sleep(0.1)  # a resize is drawn with the next frame
        # Charts and lists follow it with later ones.
        self.wait("document.documentElement.scrollWidth <= innerWidth", timeout=20)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.script(OFFSCREEN), timeout=20)
        assert self.script(OFFSCREEN) == []
