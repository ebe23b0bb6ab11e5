"""The pages of the documentation: their blocks of code, and how outputs are compared with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^ *```(?P<kind>\S*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_RUN_ID = re.compile(r"-\d{8}-\d{6}-\w{4}\b")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    kind: str
    """The word after the fence: ``console``, ``output``, ``python``, ``json`` …"""
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[str]:
        """Return the commands of a console block, each without its prompt."""
        joined = self.text.replace("\\\n", " ")
        return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]

    def others(self) -> list[str]:
        """Return the lines of a console block that are not commands."""
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if not line.startswith("$ ")]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("kind")) + 1
        yield Block(page, line, match["kind"], match["text"])


def unprinted(page: str, having: str, *printed: str) -> list[str]:
    """Return the lines of the page's output blocks that are not in `printed`.

    Only blocks with the text `having` are compared. Numbers, times and ids of runs may differ;
    ``…`` stands for any text; a long line of the program may be wrapped. `page`: below ``docs``.
    """
    found = [block for block in blocks(DOCS / page) if block.kind == "output"]
    shown = [block for block in found if having in block.text]
    assert shown, f"{page} has no output with {having!r}"
    everything = _without_values(" ".join(printed))
    return [
        line
        for block in shown
        for line in block.text.splitlines()
        if not all(part.strip() in everything for part in _without_values(line).split("…"))
    ]


def _without_values(text: str) -> str:
    text = _RUN_ID.sub("-ID", _COLOUR.sub("", text))
    text = re.sub(r"\S*/(?=(?:runs|bundles)/)", "", text)
    text = re.sub(r"\d+ min \d+ s|\d[\d.]* s\b", "# s", text)
    return " ".join(_NUMBER.sub("#", text).split())
