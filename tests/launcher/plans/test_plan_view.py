"""A plan is displayed as a table for people and as commands for a shell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import plan_of as plan_with

from tfcluster.errors import InterpreterError
from tfcluster.plans.plan import (
    CheckpointPlan,
    Command,
    EnvVar,
    Interpreter,
    NodePlan,
    Plan,
    Supervision,
    TaskId,
    TaskPlan,
)
from tfcluster.typed_json import from_json, to_json
from tfcluster.ui.plan_view import format_exports, format_plan, format_task, task_json

Planner = Callable[..., Plan]
WORKER = TaskId("worker", 0)


def a_plan() -> Plan:
    env = (
        EnvVar("GREETING", 'it\'s "two" words', "job.env"),
        EnvVar("KEY", "s3cret", "job.secrets, the launcher's value", secret=True),
    )
    command = Command(("/bin/echo", "a b", "$HOME"), env, "/", ("TF_CONFIG",))
    python = Interpreter("/v/bin/python", "$VIRTUAL_ENV", "3.11.7", {"tensorflow": "2.21.0"})
    return replace(
        plan_with("worker:0", name="demo"),
        spec_path="/x/demo.json",
        nodes=(NodePlan("local", "local", python, "/"),),
        tasks=(TaskPlan(WORKER, "local", "127.0.0.1", 0, command, cores=(0, 1), gpus=()),),
        prepare={"local": command},
        supervision=Supervision(run_deadline_s=5.0),
        checkpoints=CheckpointPlan(outputs=("*.png",)),
        settings={"communication": "RING"},
        notes=("mind the gap",),
    )


def test_the_table_shows_address_python_notes_and_problems() -> None:
    obstacle = InterpreterError("no TensorFlow", fix="install it")
    text = "\n".join(format_plan(a_plan(), [obstacle], width=100))
    assert "127.0.0.1, port chosen at start" in text
    assert "/v/bin/python ($VIRTUAL_ENV)" in text
    assert "Python 3.11.7, TensorFlow 2.21.0" in text
    assert "communication RING" in text
    assert "note: mind the gap" in text
    assert "problem that would stop `up`: no TensorFlow" in text


def test_on_a_narrow_terminal_only_single_words_exceed_the_width() -> None:
    for line in format_plan(a_plan(), [], width=40):
        assert len(line) <= 40 or " " not in line.strip()


def test_the_lines_of_one_task_run_in_a_shell() -> None:
    lines = format_task(a_plan(), WORKER)
    script = "\n".join([*lines, 'printf "%s|%s" "$GREETING" "$TFCLUSTER_TASK"'])
    result = subprocess.run(["sh", "-eu", "-c", script], capture_output=True, text=True)
    assert result.stdout == 'a b $HOME\nit\'s "two" words|worker:0'
    assert result.returncode == 0


def test_every_variable_is_shown_with_its_source_and_secrets_are_hidden() -> None:
    lines = format_task(a_plan(), WORKER)
    exports = [line for line in lines if "export " in line]
    assert "# export KEY=" in "\n".join(exports)
    assert all("  # " in line for line in exports)
    assert any(line.startswith("export TF_CONFIG=") for line in exports)
    assert "s3cret" not in "\n".join(lines)
    assert "s3cret" not in json.dumps(task_json(a_plan(), WORKER))
    stored = json.dumps(to_json(a_plan()))
    assert "s3cret" not in stored
    key = from_json(Plan, json.loads(stored)).task(WORKER).command.env[1]
    assert (key.value, key.secret) == ("", True)


def test_exports_omit_secrets_and_name_those_missing_in_the_shell() -> None:
    env = a_plan().task(WORKER).command.env
    lines = format_exports(a_plan(), WORKER, env, known={})
    assert lines[0] == "unset TF_CONFIG"
    assert "s3cret" not in "\n".join(lines)
    assert any("KEY is secret" in line for line in lines)
    assert "KEY" not in "\n".join(format_exports(a_plan(), WORKER, env, known={"KEY": "s3cret"}))


def test_the_lines_of_a_remote_task_run_in_its_shell(plan_of: Planner, tmp_path: Path) -> None:
    """The remote home and run id are used; the user's arguments are unchanged."""
    hosts = {"*": {"python": "~/my venv", "data_dir": "~/my data"}}
    job: dict[str, Any] = {
        "script": "tr ain.py",
        "args": ["~/x", "$HOME"],
        "hooks": "off",
        "workdir": "~/code",
    }
    job["env"] = {"OWN": "~/y"}
    sections = {"cluster": {"worker": ["10.0.0.1:2222"]}, "runtime": {"hosts": hosts}, "job": job}
    remote = {"10.0.0.1": Interpreter("~/my venv/bin/python", "runtime.hosts.*.python")}
    lines = format_task(plan_of(sections, interpreters=remote), WORKER)
    home = tmp_path / "ho me"
    work = home / ".cache/tfcluster/nodes/RUN/10.0.0.1/work"
    work.mkdir(parents=True)
    (home / "my venv/bin").mkdir(parents=True)
    python = home / "my venv/bin/python"
    python.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$PWD" "$@" "$TFDS_DATA_DIR" "$OWN" "$PYTHONPATH"\n'
    )
    python.chmod(0o755)
    result = subprocess.run(
        ["sh", "-eu", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    bundle = f"{home}/.cache/tfcluster/bundles/0123abcd/workers"
    expected = [f"{work}", f"{work}/tr ain.py", "~/x", "$HOME", f"{home}/my data", "~/y", bundle]
    assert result.stdout.splitlines() == expected


def test_a_task_with_another_program_is_shown_with_its_own_command(plan_of: Planner) -> None:
    job = {"args": ["train"], "per_task": {"ps": {"args": ["serve"]}}}
    plan = plan_of({"cluster": {"chief": 1, "worker": 2, "ps": 1}, "job": job})
    rows = [line for line in format_plan(plan, [], width=200) if line.startswith("command")]
    usual, of_ps = rows
    assert usual.startswith("command  ")
    assert usual.endswith("train.py train")
    assert of_ps.startswith("command of ps:0  ")
    assert of_ps.endswith("train.py serve")


def test_many_hosts_do_not_fill_the_screen(plan_of: Planner) -> None:
    addresses = [f"10.0.0.{number}:2222" for number in range(1, 65)]
    hosts = {"10.0.0.2": {"workdir": "/scratch"}}
    remote = {f"10.0.0.{n}": Interpreter("python3", "python3 on its PATH") for n in range(1, 65)}
    remote["10.0.0.3"] = Interpreter("/opt/python", "runtime.hosts.10.0.0.3.python")
    sections = {"cluster": {"worker": addresses}, "runtime": {"hosts": hosts}}
    plan = plan_of(sections, interpreters=remote)
    text = "\n".join(format_plan(plan, [], width=120))
    head = text.partition("task ")[0].splitlines()
    assert len(head) < 20
    assert "~/.cache/tfcluster/nodes/$TFCLUSTER_RUN_ID/NODE/work" in text
    assert "/scratch/tfcluster/$TFCLUSTER_RUN_ID/NODE/work" in text
    assert "python on 10.0.0.1, 10.0.0.2, 10.0.0.4 and 60 more" in text
    assert "python on 10.0.0.3" in text
    assert "command of" not in text


@pytest.mark.parametrize("are_remote", [False, True])
def test_planning_and_showing_cost_the_same_for_each_task(
    plan_of: Planner, are_remote: bool
) -> None:
    """Counted in lines of Python, whatever else the machine does; 4,000 tasks took 31 s."""

    def lines_for(count: int) -> int:
        hosts = [f"10.0.{number // 250}.{number % 250}:2222" for number in range(count)]
        workers = hosts if are_remote else count
        lines = 0

        def note(frame: object, event: str, arg: object) -> object:
            nonlocal lines
            lines += event == "line"
            return note

        before = sys.gettrace()
        sys.settrace(note)  # type: ignore[arg-type]
        try:
            plan = plan_of({"cluster": {"worker": workers}})
            assert format_plan(plan, [], width=100)
        finally:
            sys.settrace(before)
        return lines

    lines_for(1)  # what is imported or cached at the first time
    assert lines_for(600) < 2.5 * lines_for(300)
