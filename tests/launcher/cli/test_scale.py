"""`tfcluster scale` refuses what it cannot measure before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import Tfcluster

Refused = Callable[..., str]


@pytest.fixture
def refused(
    tfcluster: Tfcluster, home_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Refused:
    """Run `scale` on a spec with these changes; return its error, which has exit code 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import tensorflow\n")

    def run(*args: str, **changed: Any) -> str:
        spec = {"cluster": {"worker": 2}, "job": {"script": "train.py"}, **changed}
        (tmp_path / "train.json").write_text(json.dumps(spec))
        done = tfcluster("scale", "train.json", *args)
        assert (done.code, done.out) == (2, "")
        assert not list(home_dir.glob("runs/*"))
        return done.err

    return run


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--workers", "two"), "--workers: 'two' is not a list of numbers of workers"),
        (("--workers", ""), "write numbers from 1 to 64"),
        (("--workers", "1,65"), "write numbers from 1 to 64"),
        (("--workers", "1"), "one worker sends nothing over a network"),
        (("--rate", "fast"), "--rate: 'fast' is not a rate"),
        (("--rate", "1gbit", "--communication", "NCCL"), "NCCL needs GPUs"),
        (("--communication", "TREE"), "write some of AUTO, RING, NCCL"),
        (("--predict", "4"), "simulate them on this machine: --rate 1gbit,10gbit"),
        (
            ("--rate", "1gbit", "--workers", "1,2", "--predict", "2"),
            "measure other numbers too: --workers 1,2,2",
        ),
        (("--rate", "1gbit", "-H", "gpu1,gpu2"), "leave it out to measure the real cluster"),
        (("--rate", "1gbit", "--backend", "slurm"), "leave it out to measure the real cluster"),
        (("-H", "gpu1,gpu2", "--workers", "1,4"), "lists addresses for 2 workers, not 4"),
        (("--predict", "x"), "--predict: 'x' is not a list"),
        (("-o", "missing/page.html"), "no folder missing"),
        (("--repeats", "2"), "→ each cell is a run of its own: for longer cells, increase --steps"),
    ],
)
def test_a_wrong_option_is_named_with_a_fix(
    refused: Refused, args: tuple[str, ...], message: str
) -> None:
    assert message in refused(*args)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"job": {"command": ["sleep", "1"]}}, "a command reports no steps"),
        ({"job": {"script": "train.py", "kind": "plain"}}, "its tasks form no cluster"),
        ({"job": {"script": "train.py", "hooks": "off"}}, "it reports no steps"),
        (
            {"job": {"script": "train.py", "kind": "tuner"}, "cluster": {"chief": 1, "worker": 2}},
            "each tuner trains alone",
        ),
        ({"cluster": {"chief": 1, "worker": 1, "ps": 1}}, "its workers do not wait"),
    ],
)
def test_a_job_that_cannot_be_studied_is_refused(
    refused: Refused, changed: dict[str, Any], why: str
) -> None:
    error = refused(**changed)
    assert f"this job cannot be studied: {why}" in error
    assert "→" in error
