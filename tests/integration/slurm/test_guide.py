"""The scripts of docs/guides/slurm.md do on a real cluster what the page says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.documentation import DOCS, blocks
from tests.integration.hosts.office import import_path, until
from tests.lab.slurm import PATH

from .site import Site

pytestmark = pytest.mark.slow
SHOW = """
import json, os, sys
print(len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]), sys.argv[1:])
"""
SCRIPTS = [block.text for block in blocks(DOCS / "guides/slurm.md") if block.kind == "sh"]


@pytest.fixture
def desk(site: Site) -> Site:
    """A folder with the page's `train.json` and a `tfcluster` on PATH."""
    site.spec(SHOW).rename(site.desk / "train.json")
    command = site.write(
        "tfcluster", f'#!/bin/sh\nexec {sys.executable} -m tfcluster.cli.main "$@"\n'
    )
    command.chmod(0o755)
    return site


def run(site: Site, *argv: str) -> str:
    env = {"PATH": f"{site.desk}:{Path(sys.executable).parent}:{PATH}", "PYTHONPATH": import_path()}
    done = site.cluster.run(argv, user=site.user, cwd=site.desk, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(site: Site, count: int) -> dict[str, dict[str, str]]:
    """Wait for the end of `count` runs; return name → task → log of those that succeeded."""
    runs = site.cluster.home(site.user) / ".local/state/tfcluster/runs"

    def states() -> dict[Path, str]:
        found = runs.glob("*/state.json")
        return {path.parent: json.loads(path.read_text())["status"] for path in found}

    final = {"succeeded", "failed", "timed_out", "interrupted", "lost"}
    until(lambda: len(found := states()) == count and {*found.values()} <= final, f"{count} runs")
    return {
        folder.name.rsplit("-", 3)[0]: {
            log.stem: log.read_text() for log in (folder / "logs/attempt-1").glob("worker-*.log")
        }
        for folder, status in states().items()
        if status == "succeeded"
    }


def test_a_script_of_ones_own_uses_the_nodes_of_its_job(desk: Site) -> None:
    (script,) = [text for text in SCRIPTS if "SBATCH" in text and "--array" not in text]
    desk.write("own.sh", script)
    run(desk, "sbatch", "own.sh")
    (logs,) = ended(desk, 1).values()
    assert logs == dict.fromkeys(("worker-0", "worker-1"), "2 []\n")


@pytest.mark.parametrize("is_array", [True, False], ids=["array", "loop"])
def test_each_value_of_a_sweep_is_a_run_of_its_own(desk: Site, *, is_array: bool) -> None:
    (script,) = [text for text in SCRIPTS if "sweep" in text and ("--array" in text) is is_array]
    desk.write("sweep.sh", script)
    run(desk, *(("sbatch", "sweep.sh") if is_array else ("sh", "./sweep.sh")))
    logs = ended(desk, 3)
    for rate in ("0.1", "0.03", "0.01"):
        said = f"2 ['--learning-rate', '{rate}']\n"
        assert logs[f"sweep-{rate}"] == dict.fromkeys(("worker-0", "worker-1"), said)
    assert "sweep-0.03" in run(desk, "tfcluster", "compare", "sweep-0.1", "sweep-0.03")
