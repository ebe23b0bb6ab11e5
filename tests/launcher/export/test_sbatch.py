"""A script for sbatch asks for the nodes of the plan, and starts `up` on them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.documentation import unprinted

from tfcluster.errors import UsageError
from tfcluster.spec import PlanOptions
from tfcluster.spec.sections import Slurm

from .conftest import SCRIPT, Exporter

ALL: dict[str, Any] = {
    **{"partition": "gpu", "account": "vision", "qos": "high", "time": "12h", "nodes": 2},
    **{"tasks_per_node": 2, "gpus_per_task": 2, "cpus_per_task": 8, "mem": "64g"},
    **{"constraint": "a100&nvlink", "reservation": "course", "extra": ["--exclusive"]},
}
ECHO = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


def options(text: str) -> list[str]:
    """Return the options of a script, as sbatch reads them."""
    return [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH ")]


def run(script: str, folder: Path, **env: str) -> list[str]:
    """Run a script with a tfcluster that prints its arguments."""
    (folder / "tfcluster").write_text(ECHO)
    (folder / "tfcluster").chmod(0o755)
    path = folder / "lab.sbatch"
    path.write_text(script)
    variables = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "17", **env}
    done = subprocess.run(["sh", path], env=variables, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_job_asks_for_the_nodes_of_the_plan(exported: Exporter) -> None:
    text = exported("sbatch", {"cluster": {"worker": 3}}).text
    assert text.startswith("#!/bin/sh\n")
    assert {"--nodes=3", "--ntasks-per-node=1"} <= {*options(text)}
    ends = {"--requeue", "--open-mode=append", "--signal=B:USR1@120"}
    assert ends <= {*options(text)}
    assert "--no-kill" not in options(text), "else a job goes on without its script's node"
    shrinks = {"cluster": {"worker": 3}, "supervision": {"min_workers": 2}}
    assert "--no-kill" in options(exported("sbatch", shrinks).text)
    assert {"--job-name=lab", "--output=lab-%j.log"} <= {*options(text)}


def test_every_field_of_the_spec_becomes_an_option(exported: Exporter) -> None:
    sections = {"cluster": {"worker": 4}, "runtime": {"slurm": ALL}}
    found = options(exported("sbatch", sections).text)
    assert {
        *("--partition=gpu", "--account=vision", "--qos=high", "--time=720", "--nodes=2"),
        *("--ntasks-per-node=2", "--gpus-per-node=4", "--cpus-per-task=8", "--mem=64g"),
        *("--constraint=a100&nvlink", "--reservation=course", "--exclusive"),
    } <= {*found}


def test_every_option_has_a_line_that_says_why_it_is_there(exported: Exporter) -> None:
    sections = {"cluster": {"worker": 4}, "runtime": {"slurm": ALL}}
    lines = exported("sbatch", sections).text.splitlines()
    places = [place for place, line in enumerate(lines) if line.startswith("#SBATCH")]
    reasons = {lines[place]: lines[place - 1] for place in places if place - 1 not in places}
    assert len(reasons) == len(places) - 1  # one line for the name and the log
    fields = {
        field for why in reasons.values() for field in re.findall(r"runtime\.slurm\.(\w+)", why)
    }
    assert fields <= {*Slurm.model_fields}
    assert reasons["#SBATCH --exclusive"] == "# runtime.slurm.extra"


def test_a_reason_names_the_field_of_the_role_that_gave_the_value(exported: Exporter) -> None:
    roles = {"ps": {"slurm": {"gpus_per_task": 0, "mem": "1g", "extra": ["--x"]}}}
    cluster = {"chief": 1, "worker": 1, "ps": 1}
    slurm = {"partition": "gpu", "gpus_per_task": 2}
    sections = {"cluster": cluster, "runtime": {"slurm": slurm, "roles": roles}}
    sections |= {"checkpoints": {"dir": "/shared"}}
    first, second = exported("sbatch", sections).text.split("#SBATCH hetjob\n")
    own = "# runtime.roles.ps.slurm"
    assert "# runtime.slurm.gpus_per_task for each of them\n" in first
    assert f"{own}.gpus_per_task for each of them\n" in second
    assert f"{own}.mem\n#SBATCH --mem=1g\n" in second
    assert f"{own}.extra\n#SBATCH --x\n" in second
    assert "# runtime.slurm.partition\n#SBATCH --partition=gpu\n" in second


def test_the_job_starts_up_with_the_same_options(exported: Exporter, tmp_path: Path) -> None:
    sets, args = ("job.env.A=it's",), ("--epochs", "3 4")
    given = PlanOptions(sets, python="/usr/bin/python3", args=args)
    own = (str(tmp_path / "tfcluster"),)
    made = exported("sbatch", tfcluster=own, options=given)
    assert run(made.text, tmp_path) == [
        *("up", str(tmp_path / "spec.json"), "--backend", "slurm", "--set", "job.env.A=it's"),
        *("--python", "/usr/bin/python3", "--name", "lab-17"),
        *("--", "--epochs", "3 4"),
    ]


def test_the_folder_of_runs_is_kept(exported: Exporter, cache: Path) -> None:
    environ = {"HOME": str(cache), "PATH": "/usr/bin:/bin", "TFCLUSTER_HOME": "/shared/my runs"}
    made = exported("sbatch", environ=environ)
    assert "\nexport TFCLUSTER_HOME='/shared/my runs'\n" in made.text
    assert "a folder for runs that the nodes share: /shared/my runs (TFCLUSTER_HOME)" in made.needs
    assert "export TFCLUSTER_HOME" not in exported("sbatch").text


def test_the_job_does_not_depend_on_an_allocation_around_the_export(
    exported: Exporter, cache: Path
) -> None:
    sections = {"cluster": {"worker": 4}}
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    environ = {"HOME": str(cache), "PATH": "/usr/bin:/bin", **inside}
    assert exported("sbatch", sections, environ=environ) == exported("sbatch", sections)


def test_secrets_are_only_named(exported: Exporter) -> None:
    made = exported("sbatch", {"job": SCRIPT | {"secrets": ["PIN"]}})
    assert "the variable PIN, a secret, set where sbatch runs, which passes it on" in made.needs
    with pytest.raises(UsageError, match="value of a secret"):
        exported("sbatch", options=PlanOptions(("job.env.DB_PASSWORD=hunter22",)))


def test_a_spec_without_a_file_cannot_be_started_later(
    exported: Exporter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = exported("sbatch")
    assert made.text
    text = (tmp_path / "spec.json").read_bytes()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tfcluster.spec.source.read_stdin", lambda what: text.decode())
    with pytest.raises(UsageError, match="reads the spec from its file"):
        exported("sbatch", spec="-")


def test_the_guide_shows_what_is_written(exported: Exporter) -> None:
    made = exported("sbatch", {"runtime": {"slurm": {"partition": "gpu", "time": "12h"}}})
    assert unprinted("guides/export.md", "#SBATCH", made.text.replace("lab", "train")) == []


def test_the_lines_of_the_user_come_first(exported: Exporter, tmp_path: Path) -> None:
    runtime = {"slurm": {"setup": ["module() { :; }", "module load cuda"]}}
    made = exported("sbatch", {"runtime": runtime}, tfcluster=(str(tmp_path / "tfcluster"),))
    assert made.text.startswith("#!/bin/bash -l\n")
    assert made.text.index("module load cuda\n") < made.text.index("exec ")
