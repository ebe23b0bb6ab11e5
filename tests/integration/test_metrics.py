"""Prometheus sees a run: in a file that `up` keeps for node_exporter, and at the web page."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .commandline import CommandLine, wait_for
from .live import InBackground
from .test_ui import TRAIN, serving

KILLED_ONCE = f"""
import os, signal, sys
if os.environ["TFCLUSTER_ATTEMPT"] == "1" and os.environ["TFCLUSTER_TASK"] == "worker:1":
    os.kill(os.getpid(), signal.SIGKILL)
{TRAIN}"""


def read(text: str) -> dict[tuple[str, ...], float]:
    """Return (name, task or status) → value; without the prefix, only what is not 0."""
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {
        (
            sample.name.removeprefix("tfcluster_"),
            *(sample.labels[name] for name in ("task", "status") if name in sample.labels),
        ): sample.value
        for sample in samples
        if sample.value
    }


def test_a_file_and_a_page_have_the_present_state_of_a_run(shell: CommandLine) -> None:
    shell.script("train.py", KILLED_ONCE)
    folder = shell.root / "textfiles"
    folder.mkdir()
    shell.env["HOME"] = str(folder)  # a background run has another folder than its starter
    spec = shell.spec("s.json", {"script": "train.py"}, supervision={"backoff_s": 0})
    run = InBackground(shell, "up", str(spec), "--metrics-file", "~/lab.prom", name="s")
    path = folder / "lab.prom"

    def now() -> dict[tuple[str, ...], float]:
        return read(path.read_text())

    # The memory is measured later than the first step comes.
    both = {("task_step", "worker:1"), ("task_resident_memory_bytes", "worker:0")}
    wait_for(lambda: both <= now().keys(), what="a step and the memory in the file")
    assert now()["run_restarts_total",] == 1
    assert now()["run_status", "running"] == 1
    assert now()["task_resident_memory_bytes", "worker:0"] > 2**20

    token = shell.root / "token"
    with serving(shell, "--metrics-token", str(token)) as server:
        scraper = {"authorization": f"Bearer {token.read_text().strip()}"}
        url = f"http://{server.place}/metrics"
        answer = httpx.get(url, headers=scraper, trust_env=False)
        assert httpx.get(url, trust_env=False).status_code == 401
        server.end()
    scraped = read(answer.text)
    assert scraped["run_status", "running"] == scraped["run_restarts_total",] == 1
    assert scraped["task_step", "worker:1"] > 0

    run.down()
    wait_for(lambda: ("run_status", "interrupted") in now(), what="the end in the file")
    assert now()["run_exit_code",] == 143
    assert now()["run_end_time_seconds",] >= now()["run_start_time_seconds",]
    assert [each.name for each in folder.glob("*.prom*")] == [path.name]


def test_a_file_in_no_folder_is_refused_before_the_start(shell: CommandLine) -> None:
    shell.script("job.py", "")
    refused = shell.run("run", "--metrics-file", "nowhere/lab.prom", "job.py")
    assert (refused.code, shell.runs()) == (2, [])
    assert f"{shell.cwd}/nowhere/lab.prom cannot be written" in refused.err
