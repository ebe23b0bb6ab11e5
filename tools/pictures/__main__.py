"""Takes the pictures of the documentation from real runs: `make pictures`."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.pictures import terminal

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/pictures"


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of a command's screen."""

    name: str
    spec: str
    until: str
    """The command's screen is taken when it matches this regular expression."""
    columns: int = 80
    rows: int = 24


SHOTS = (
    Shot("live-view", "localhost-2w", r"epoch 3/3"),
    Shot("summary", "localhost-2w", r"succeeded after[\s\S]*checkpoint", columns=100, rows=18),
    Shot("failure", "broken-2w", r"failed after[\s\S]*logs", columns=100, rows=36),
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tfc-", dir="/tmp") as home:
        os.environ |= {
            "TFCLUSTER_HOME": home,
            "VIRTUAL_ENV": sys.prefix,
            "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}",
        }
        os.chdir(ROOT)
        for shot in SHOTS:
            take(shot)


def take(shot: Shot) -> None:
    command = ["tfcluster", "up", f"cluster_specs/{shot.spec}.json"]
    screen = terminal.take(
        command, columns=shot.columns, rows=shot.rows, until=shot.until, wait_s=1
    )
    svg = terminal.to_svg(screen, columns=shot.columns, title=" ".join(command))
    (FOLDER / f"{shot.name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
