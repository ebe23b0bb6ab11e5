"""`tfcluster plan` and `tfcluster env` print what a start would do, and start nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.documentation import DOCS, blocks, unprinted
from tests.launcher.cli.conftest import Forked, environ

FIXED = {
    "cluster": {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]},
    "job": {"script": "train.py", "env": {"WORDS": "it's $HOME"}, "secrets": ["KEY"]},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """Return a folder with a job on fixed ports that needs no TensorFlow, and its spec."""
    (tmp_path / "tfcluster.json").write_text(json.dumps(FIXED))
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['TF_CONFIG'])\n")
    return tmp_path


def test_the_table_goes_to_stdout_and_nothing_is_started(folder: Path, forked: Forked) -> None:
    result = forked("plan", "--python", sys.executable)
    assert (result.returncode, result.stderr) == (0, "")
    assert "worker:1  local  127.0.0.1:2223" in result.stdout
    assert f"{sys.executable} (--python)" in result.stdout
    assert not (folder / "home").exists()


def test_json_is_one_object_with_obstacles(forked: Forked) -> None:
    sets = ("--set", "job.args=[]", "--set", "strategy.communication=NCCL")
    result = forked("plan", "--json", *sets, "--", "--epochs", "3")
    data = json.loads(result.stdout)
    assert result.returncode == 0
    assert data["tasks"][0]["command"]["argv"][-2:] == ["--epochs", "3"]
    assert ["NCCL" in obstacle for obstacle in data["obstacles"]] == [True]
    assert "s3cret" not in result.stdout


def test_one_task_is_printed_as_a_runnable_script(folder: Path, forked: Forked) -> None:
    result = forked("plan", "--task", "worker:1", "--python", sys.executable)
    done = subprocess.run(
        ["sh", "-eu"], input=result.stdout, env=environ(folder), capture_output=True, text=True
    )
    assert json.loads(done.stdout)["task"] == {"type": "worker", "index": 1}
    assert "# job.env" in result.stdout


def test_a_dry_run_is_the_plan_of_the_same_start(folder: Path, forked: Forked) -> None:
    (folder / "vars").write_text("# docker's format\nA=file\nB=two words\n")
    given = ("-e", "A=option", "--env", "WORDS", "--env-file", "vars", "--on-end", "true")
    dry = forked("up", "--dry-run", *given[:-2], "--", "--epochs", "3", WORDS="mine")
    planned = forked("plan", *given[:-2], "--", "--epochs", "3", WORDS="mine")
    assert (dry.returncode, dry.stdout, dry.stderr) == (0, planned.stdout, "")
    tasks = json.loads(forked("up", "--dry-run", "--json", *given, WORDS="mine").stdout)["tasks"]
    values = {each["name"]: each["value"] for each in tasks[1]["command"]["env"]}
    assert [values[name] for name in ("A", "B", "WORDS")] == ["option", "two words", "mine"]
    assert not (folder / "home").exists()


def test_run_warns_of_its_options_after_the_script(forked: Forked) -> None:
    done = forked("run", "--dry-run", "train.py", "--epochs", "3", "-n", "1")
    assert done.returncode == 0
    assert "worker:1" in done.stdout
    assert done.stderr == (
        "warning: -n 1 comes after train.py, so the script gets it\n"
        "  → if it is meant for tfcluster: tfcluster run --dry-run -n 1 train.py --epochs 3\n"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("plan", "-e", "1A=x"), "-e 1A: '1A' is not a variable name"),
        (("plan", "-e", "A"), "export A="),
        (("up", "--env-file", "none"), "/none\n  → check the path"),
        (
            ("up", "--on-end", "http://chat/hook"),
            "--on-end: supervision.on_end: 'http://chat/hook'",
        ),
        (("plan", "--task", "worker:2"), "no task worker:2\n  → use one of worker:0, worker:1"),
        (("plan", "--task", "walker"), "write JOB:INDEX"),
        (("plan", "missing.json"), "missing.json"),
        (("env", "tfcluster.json", "ps:0"), "the plan has no task ps:0"),
        (("env", "tfcluster.json", "worker:0", "--set", 'cluster={"worker":2}'), "fixed"),
        (("plan", "--set", "job.env.A=null"), "export A="),
        (("plan", "--python", "no/python"), "no/python (--python)"),
    ],
)
def test_a_mistake_exits_with_2_and_a_fix(
    forked: Forked, args: tuple[str, ...], message: str
) -> None:
    result = forked(*args)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


# A case → the spec (FIXED with changes), options, and the exit code of both commands.
SAME_CODES: dict[str, tuple[Any, tuple[str, ...], int]] = {
    "OK": ({}, (), 0),
    "an obstacle on this machine": ({"strategy": {"communication": "NCCL"}}, (), 0),
    "a program that is no Python": ({"runtime": {"python": "/bin/false"}}, (), 3),
    "a wrong --set": ({}, ("--set", "cluster.worker=0"), 2),
}


@pytest.mark.parametrize(("change", "options", "code"), SAME_CODES.values(), ids=SAME_CODES)
def test_plan_and_validate_agree(
    folder: Path, forked: Forked, change: Any, options: tuple[str, ...], code: int
) -> None:
    spec = folder / "tfcluster.json"
    spec.write_text(json.dumps({**FIXED, **change}))
    planned, checked = (forked(name, *options) for name in ("plan", "validate"))
    assert (planned.returncode, checked.returncode) == (code, code)
    answer = forked("validate", "--json", *options)
    assert (answer.returncode, json.loads(answer.stdout)["valid"]) == (code, code == 0)
    if code:
        assert planned.stderr == checked.stderr
        assert json.loads(answer.stdout)["problems"][0]["message"] in planned.stderr


@pytest.mark.parametrize("command", ["plan", "up", "run"])
def test_every_command_refuses_a_missing_script_with_the_same_message(
    folder: Path, forked: Forked, command: str
) -> None:
    (folder / "train.py").unlink()
    what = ["train.py"] if command == "run" else ["tfcluster.json"]
    result = forked(command, *what)
    assert (result.returncode, result.stdout) == (2, "")
    place = "tfcluster run" if command == "run" else "tfcluster.json:1:81"
    assert result.stderr == (
        f"tfcluster: {place}: job.script: there is no script at {folder}/train.py\n"
        f"  → it is relative to the workdir, {folder}\n"
    )


def test_exports_start_a_task_by_hand(folder: Path) -> None:
    script = (
        f'eval "$({sys.executable} -m tfcluster.cli.main env tfcluster.json worker:1)"\n'
        'printf "%s|%s|%s\\n" "$WORDS" "$KEY" "$TFCLUSTER_TASK"\n'
        f"{sys.executable} train.py\n"
        f"{sys.executable} -c 'import tfcluster_workers'\n"
    )
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=folder,
        env=environ(folder),
        capture_output=True,
        text=True,
    )
    values, config = done.stdout.splitlines()
    assert values == "it's $HOME|s3cret|worker:1"
    assert json.loads(config)["cluster"] == FIXED["cluster"]
    assert done.returncode == 0


def test_hosts_of_the_command_line_replace_those_of_the_spec(forked: Forked, folder: Path) -> None:
    (folder / "lab").write_text("anna@gpu1 slots=2\n")
    result = forked("plan", "--hosts", "lab", "--json")
    plan = json.loads(result.stdout)
    assert [(task["host"], task["port"]) for task in plan["tasks"]] == [("gpu1", 0)] * 2
    assert [node["destination"] for node in plan["nodes"]] == ["anna@gpu1"]
    result = forked("plan", "--hosts", "gpu1:2", "--exclude", "gpu1:worker:0", "--exclude", "gpu2")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--exclude gpu2: no task is on the host 'gpu2'" in result.stderr


def test_the_users_defaults_are_shown_with_their_source(folder: Path, forked: Forked) -> None:
    config = folder / "mine.yaml"
    config.write_text(
        "default: {supervision: {grace_s: 2m}}\n"
        'lab: {runtime: {hosts: {"*": {env: {WANDB_API_KEY: hidden}}}, preload: "off"}}\n'
    )
    more = {"TFCLUSTER_CONFIG": str(config), "HOME": str(folder)}
    shown = forked("plan", "--profile", "lab", **more).stdout
    assert "profile lab      runtime.hosts.*.env.WANDB_API_KEY, runtime.preload=off" in shown
    assert "profile default  supervision.grace_s=2m (~/mine.yaml)" in shown
    assert "hidden" not in shown
    data = json.loads(forked("plan", "--json", **more).stdout)
    (default,) = data["defaults"]
    assert (default["field"], default["file"]) == ("supervision.grace_s", "~/mine.yaml")
    example = next(block for block in blocks(DOCS / "guides/defaults.md") if block.kind == "yaml")
    config = folder / ".config/tfcluster/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(example.text)
    more["TFCLUSTER_CONFIG"] = str(config)
    shown = forked("plan", "--profile", "lab", **more).stdout
    assert unprinted("guides/defaults.md", "profile lab", shown) == []
    refused = forked("validate", "--profile", "lob", **more)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "did you mean lab?" in refused.stderr
