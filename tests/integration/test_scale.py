"""`tfcluster scale` measures real TensorFlow, here or on simulated networks, and leaves nothing."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.documentation import unprinted

from .commandline import CommandLine

SPEC = Path(__file__).parents[2] / "cluster_specs/gradient-volume-2w.json"
SLOW, FAST = 20e6, 80e6
"""Bits per second."""
MEGABYTES = 1.0
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_slower_network_has_longer_steps_and_nothing_is_left(shell: CommandLine) -> None:
    done = shell.run(
        *("scale", str(SPEC), "--rate", "20mbit,80mbit,1gbit", "--steps", "6"),
        *("--predict", "3", "-o", "page.html", f"--python={sys.executable}"),
        *("--", "--steps", "1000000", "--megabytes", str(MEGABYTES)),
        timeout=380,
    )
    assert done.code == 0, done.err[-4000:]
    printed = done.out.decode()
    assert unprinted("guides/scaling-study.md", "of the rate reached", printed) == []
    study = study_in(shell.cwd / "page.html")
    alone, *several = study["cells"]
    assert (alone["workers"], alone["rate"], alone["collective_s"]) == (1, None, 0)
    assert [(c["workers"], c["communication"], c["rate"]) for c in several] == [
        (2, "AUTO", rate) for rate in (SLOW, FAST, 1e9)
    ]
    slow, fast, _ = several
    assert min(cell["steps"] for cell in study["cells"]) >= 6
    assert study["gradient_bytes"] == MEGABYTES * 1e6
    assert slow["step_s"] > fast["step_s"]
    # Two workers send and receive half of the volume twice.
    assert slow["ring_s"] == pytest.approx(MEGABYTES * 8e6 / SLOW)
    assert slow["collective_s"] >= 0.9 * slow["ring_s"]
    predicted = study["predictions"]
    assert [(p["workers"], p["rate"]) for p in predicted] == [(3, r) for r in (SLOW, FAST, 1e9)]
    assert predicted[0]["step_s"] > slow["step_s"] * 0.9
    assert {"compute_s", "latency_s", "effective_bits", "spread"} <= study["fits"]["AUTO"].keys()
    assert "cell 4 of 4: 2 workers, AUTO at " in done.err
    assert "Predicted for hosts" in (shell.cwd / "page.html").read_text()
    assert not list(shell.home.glob("runs/*"))


def study_in(page: Path) -> Any:
    """Return the study that a page has inside."""
    data = re.search(r'<script id="data"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert data is not None
    return json.loads(data[1])["study"]


def test_the_real_cluster_is_measured_without_rates(shell: CommandLine) -> None:
    done = shell.run(
        *("scale", str(SPEC), "--steps", "20", "-o", "page.html"),
        *(f"--python={sys.executable}", "--", "--steps", "1000000", "--compute-ms", "20"),
        timeout=380,
    )
    assert done.code == 0, done.err[-4000:]
    assert "cell 2 of 2: 2 workers;" in done.err
    printed = done.out.decode()
    assert unprinted("guides/scaling-study.md", "a step consists of", printed) == []
    assert "local: " in (shell.cwd / "page.html").read_text()
    study = study_in(shell.cwd / "page.html")
    assert (study["backend"], study["is_simulated"], study["fits"]) == ("local", False, {})
    alone, both = study["cells"]
    assert (alone["workers"], alone["efficiency"], alone["rate"]) == (1, 1.0, None)
    assert (both["workers"], both["nodes"], both["rate"]) == (2, ["local"], None)
    assert min(cell["steps"] for cell in study["cells"]) >= 20
    assert min(cell["step_s"] for cell in study["cells"]) >= 0.02
    # Each worker has one example in a step.
    assert both["examples_per_second"] == pytest.approx(2 / both["step_s"])
    assert both["efficiency"] == pytest.approx(alone["step_s"] / both["step_s"])
    assert not list(shell.home.glob("runs/*"))


def test_ctrl_c_ends_the_run_that_is_measured(shell: CommandLine) -> None:
    shell.forks = False  # Ctrl-C as a shell sends it: to a process with its own handlers
    process = shell.start(
        *("scale", str(SPEC), "--workers", "1,2", f"--python={sys.executable}"),
        *("--", "--steps", "1000000"),
    )
    until = time.monotonic() + 120
    while not list(shell.home.glob("runs/*/logs/attempt-1/worker-0.log")):
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err[-2000:]
    assert not [p for p in psutil.process_iter() if _is_of(p, shell)]


def _is_of(process: psutil.Process, shell: CommandLine) -> bool:
    try:
        return process.environ().get("TFCLUSTER_HOME") == str(shell.home)
    except psutil.Error:
        return False


def test_a_job_that_ends_too_early_is_named(shell: CommandLine) -> None:
    done = shell.run(
        *("scale", str(SPEC), f"--python={sys.executable}", "--", "--steps", "3"), timeout=200
    )
    assert done.code == 2
    assert "the job ended after 3 steps, before all was measured" in done.err
    assert "-- --steps 100000" in done.err
