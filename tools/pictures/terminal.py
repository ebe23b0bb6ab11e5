"""Takes a picture of a command in a real terminal (tmux) as SVG, and with --png as PNG too.

    .venv/bin/python tools/pictures/terminal.py live.svg --size 80x24 --until 'step 40' -- \
        tfcluster run -n 2 train.py

The command runs in the current folder until its screen matches --until, a regular expression, and
--wait more seconds. Then the terminal is closed, which ends it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

THEME = TerminalTheme(
    (27, 30, 36),
    (215, 218, 224),
    [(27, 30, 36), (224, 108, 117), (152, 195, 121), (229, 192, 123),
     (97, 175, 239), (198, 120, 221), (86, 182, 194), (171, 178, 191)],
    [(92, 99, 112), (240, 140, 148), (178, 219, 149), (240, 210, 150),
     (130, 195, 245), (215, 150, 235), (120, 205, 215), (255, 255, 255)],
)  # fmt: skip
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""rich's SVG would load its font from the network."""


class Terminal:
    """A command in a terminal of a fixed size."""

    def __init__(self, socket: str, command: Sequence[str], columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-L", socket, "-f", os.devnull]
        # The window stays once the command has ended, so that its last screen can be taken.
        line = f"{shlex.join(command)}; exec sleep infinity"
        size = ["-x", str(columns), "-y", str(rows)]
        self._run("new-session", "-d", *size, line)

    def screen(self) -> str:
        """Return the visible lines with their colours."""
        return self._run("capture-pane", "-p", "-e")

    def close(self) -> None:
        self._run("kill-server")

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True)
        return done.stdout


@contextmanager
def opened(command: Sequence[str], columns: int, rows: int) -> Iterator[Terminal]:
    """Run `command` in a terminal for the block."""
    terminal = Terminal(f"picture-{time.monotonic_ns()}", command, columns, rows)
    try:
        yield terminal
    finally:
        terminal.close()


def take(
    command: Sequence[str],
    *,
    columns: int,
    rows: int,
    until: str,
    wait_s: float = 0.0,
    timeout_s: float = 180.0,
) -> str:
    """Return the screen of `command`, with its colours, `wait_s` after it matches `until`."""
    deadline = time.monotonic() + timeout_s
    with opened(command, columns, rows) as terminal:
        while not re.search(until, Text.from_ansi(terminal.screen()).plain):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{until!r} is not on the screen:\n{terminal.screen()}")
            time.sleep(0.1)
        time.sleep(wait_s)
        return terminal.screen()


def to_svg(screen: str, *, columns: int, title: str) -> str:
    """Return a screen as an SVG that needs nothing from the network."""
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True)
    for line in screen.rstrip("\n").split("\n"):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop", crop=True)
    svg = console.export_svg(title=title, theme=THEME)
    return _FONTS.sub("", svg).replace("Fira Code, monospace", "'DejaVu Sans Mono', monospace")


def to_png(svg: Path, png: Path) -> None:
    """Draw an SVG with headless Chromium."""
    found = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg.read_text())
    assert found is not None
    size = ",".join(str(round(float(number))) for number in found.groups())
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}",
             f"--user-data-dir={profile}", "--hide-scrollbars", f"--screenshot={png.absolute()}",
             svg.absolute().as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("svg", type=Path)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--size", default="80x24", metavar="COLUMNSxROWS")
    parser.add_argument("--until", default=".", metavar="REGEX")
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--title")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    columns, rows = map(int, options.size.split("x"))
    screen = take(
        options.command, columns=columns, rows=rows, until=options.until, wait_s=options.wait
    )
    title = options.title or shlex.join(options.command)
    options.svg.write_text(to_svg(screen, columns=columns, title=title))
    if options.png:
        to_png(options.svg, options.png)


if __name__ == "__main__":
    main()
