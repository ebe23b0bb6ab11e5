"""Takes the pictures of the documentation from real runs: `make pictures`.

`python -m tools.pictures summary web` takes only the summary and those of the web page.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.pictures import terminal, web

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/pictures"
FAILING = """\
import os
import time

from tfcluster_workers import reporting


def read_shard(number):
    with open(f"shards/{number}.tfrecord", "rb") as file:
        return file.read()


reporting.ready()
for step in range(1, 401):
    time.sleep(0.02)
    reporting.progress(step, total=400, metrics={"loss": 2.3 * 0.98**step}, batch_size=96)
    if step % 40 == 0:
        print(f"step {step}", flush=True)
    if os.environ["TFCLUSTER_TASK"] == "worker:1" and step == 120:
        read_shard(7)
"""


STEADY = """
import time

from tfcluster_workers import reporting

for step in range(1, 401):
    time.sleep(0.1)
    loss = 2.3 * 0.99**step
    metrics = {"loss": loss, "accuracy": 1 - loss / 2.5}
    epoch = (step - 1) // 40 + 1
    reporting.progress(
        step, total=400, epoch=epoch, epochs=10, metrics=metrics, batch_size=64
    )
    if step % 20 == 0:
        print(f"step {step}: loss {loss:.4f}", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of a command's screen."""

    name: str
    command: str
    until: str
    """The screen is taken when it matches this regular expression."""
    columns: int = 80
    rows: int = 24


EXAMPLE = "tfcluster up cluster_specs/localhost-2w.json"
SHOTS = (
    Shot("live-view", EXAMPLE, r"epoch 3/3"),
    Shot("live-view-60", "tfcluster run -n 4 steady.py", r"epoch 3/10", columns=60),
    Shot("live-view-140", "tfcluster run -n 64 steady.py", r"epoch 3/10", columns=140, rows=30),
    Shot("summary", EXAMPLE, r"succeeded after[\s\S]*curves", columns=100, rows=34),
    Shot("failure", "tfcluster run -n 2 train.py", r"failed after[\s\S]*logs", rows=32),
)
WEB_PAGES = ("web-runs", "web-run", "web-compare")


def main() -> None:
    """Take all pictures in a home folder of their own: they show no path of this machine."""
    with tempfile.TemporaryDirectory(prefix="tfc-", dir="/tmp") as home:
        os.environ |= {
            "HOME": home,
            "TFCLUSTER_HOME": home,
            "VIRTUAL_ENV": sys.prefix,
            "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}",
        }
        folder = Path(home, "digits")
        shutil.copytree(ROOT / "cluster_specs", folder / "cluster_specs")
        (folder / "train.py").write_text(FAILING)
        (folder / "steady.py").write_text(STEADY)
        os.chdir(folder)
        for shot in SHOTS:
            if shot.name in sys.argv[1:] or not sys.argv[1:]:
                take(shot)
    os.chdir(ROOT)
    if "web" in sys.argv[1:] or not sys.argv[1:]:
        take_web_page()


def take(shot: Shot) -> None:
    """Run the command of `shot`, and write its screen to the folder of pictures."""
    command = shot.command.split()
    screen = terminal.take(
        command, columns=shot.columns, rows=shot.rows, until=shot.until, wait_s=1
    )
    svg = terminal.to_svg(screen, columns=shot.columns, title=shot.command)
    (FOLDER / f"{shot.name}.svg").write_text(svg, encoding="utf-8")


def take_web_page() -> None:
    """Take pictures of the web page, and keep those that show no path of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        web.take(Path(folder))
        for name in WEB_PAGES:
            shutil.copy(Path(folder, f"{name}.png"), FOLDER)


if __name__ == "__main__":
    main()
