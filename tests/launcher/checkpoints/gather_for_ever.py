"""A process for a test to kill (run with -m): it saves, rotates and gathers CHIEF into STORE."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.store import Store

from .files import delete_prefix, write_keras, write_prefix


def main(chief: Path, root: Path) -> None:
    gatherer = Gatherer(chief, Store(root, keep=2))
    steps = [int(path.stem.partition("-")[2]) for path in chief.glob("*.index")]
    for step in itertools.count(max(steps, default=0) + 1):
        write_prefix(chief, f"ckpt-{step}", shards=2, content=b"%d" % step * 20_000)
        write_keras(chief / "model.keras", f"{step}" * 20_000)
        if (chief / f"ckpt-{step - 2}.index").exists():
            delete_prefix(chief, f"ckpt-{step - 2}", shards=2)
        gatherer.gather_last()
        print(step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
