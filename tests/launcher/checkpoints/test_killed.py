"""The store stays complete after kill -9 at any moment of gathering, and gathering continues."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from tfcluster.checkpoints.copying import sha512
from tfcluster.checkpoints.recognition import CheckpointKind
from tfcluster.checkpoints.store import Store, read_store

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "tests.launcher.checkpoints.gather_for_ever"]
KILLS = 12


def test_a_store_whose_process_was_killed_a_dozen_times_is_complete(tmp_path: Path) -> None:
    chief, root = tmp_path / "chief", tmp_path / "store"
    chief.mkdir()
    newest = []
    for kill in range(KILLS):
        process = subprocess.Popen(
            [*COMMAND, str(chief), str(root)], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.013 * kill)
        process.kill()
        process.wait()
        process.stdout.close()

        assert_complete(root)
        Store(root)
        assert_complete(root)
        assert not list(root.glob(".*"))
        saves = [g.save for g in read_store(root)[0] if g.kind is CheckpointKind.TF_CHECKPOINT]
        newest.append(max(save or 0 for save in saves))

    assert newest == sorted(newest)
    assert newest[-1] > KILLS


def assert_complete(root: Path) -> None:
    held = read_store(root)[0]
    assert {g.folder for g in held} == {
        path for path in root.iterdir() if path.is_dir() and path.name[0] != "."
    }
    for gathered in held:
        for entry, digest in zip(gathered.checkpoint.files, gathered.digests, strict=True):
            assert sha512(gathered.file(entry)) == digest
    named = re.findall(r'paths: "(.+)"', (root / "checkpoint").read_text())
    assert named
    assert all((root / f"{prefix}.index").exists() for prefix in named)
