"""Takes pictures of the web page of real runs in Chromium, as PNG.

    .venv/bin/python -m tools.pictures.web FOLDER [--variants]

Four runs are made: two that train, one with an injected fault, one that fails. The last picture is
taken while the third one runs. --variants takes each picture in the dark and on a phone too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.browser import browser
from tests.integration.commandline import CommandLine, wait_for
from tests.integration.live import Live
from tests.web.site import Page, serve

SPECS = Path(__file__).parents[2] / "cluster_specs"
WIDE, PHONE = (1280, 860), (360, 740)
VARIANTS = {"": (*WIDE, False), "-dark": (*WIDE, True), "-phone": (*PHONE, False)}
"""The end of a file's name → width, height, and whether the colours are dark."""


def take(folder: Path, *, variants: Sequence[str] = ("",)) -> None:
    """Write web-runs.png, web-run.png, web-failed.png, web-logs.png and web-compare.png."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tfc-", dir="/tmp") as root:
        line = CommandLine(Path(root))
        try:
            with serve(line) as site, browser(*WIDE) as chromium:
                _take_pages(Page(chromium, site), line, folder, variants)
        finally:
            line.clean_up()


def _take_pages(page: Page, line: CommandLine, folder: Path, variants: Sequence[str]) -> None:
    custom = _ended(line, "custom-loop-2w")
    keras = _ended(line, "localhost-2w")
    failed = _ended(line, "broken-2w")
    fault = ("--chaos", "kill worker:1 at step 60")
    words = ("up", str(SPECS / "localhost-2w.json"), *fault, "--", "--epochs", "8")
    live = Live(line, *words, name="mnist")
    wait_for(lambda: live.is_over() or live.state()["restarts"], timeout=300)
    wait_for(lambda: live.is_over() or _step(live) > 120, timeout=300)
    assert not live.is_over(), live.said()
    shots = {
        "web-runs": ("/", ""),
        "web-run": (f"/runs/{live.run_id}", ""),
        "web-failed": (f"/runs/{failed}", ""),
        "web-logs": (f"/runs/{live.run_id}", "#logs"),
        "web-compare": (f"/compare?runs={keras},{custom}", ""),
    }
    for variant in variants:
        width, height, dark = VARIANTS[variant]
        page.resize(width, height, dark=dark)
        for name, (path, part) in shots.items():
            page.open(path)
            page.wait("document.querySelector('#runs tbody tr, #charts canvas')")
            if part:
                page.script("document.querySelector(arguments[0]).scrollIntoView()", part)
            page.settle()
            page.browser.driver.save_screenshot(str(folder / f"{name}{variant}.png"))
    live.process.terminate()
    live.end(60)


def _ended(line: CommandLine, name: str) -> str:
    """Run an example spec to its end and return the run's id."""
    line.run("up", str(SPECS / f"{name}.json"), timeout=300)
    return line.last_run().name


def _step(run: Live) -> int:
    return max(task["step"] or 0 for task in run.state()["tasks"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--variants", action="store_true")
    given = parser.parse_args()
    take(given.folder, variants=tuple(VARIANTS) if given.variants else ("",))


if __name__ == "__main__":
    main()
