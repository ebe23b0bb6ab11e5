"""`up --except TASK` leaves a task to be started by hand with the line in the start panel."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.documentation import unprinted

from .commandline import CommandLine, wait_for
from .live import Live
from .test_join import FOLLOWS, PEER, gathered, said_of

PRINTS_AND_EXITS = "print('mine', flush=True)"


def up(shell: CommandLine, ends: dict[str, str], **more: Any) -> Live:
    """Start two workers on automatic ports, but leave the second to be started by hand."""
    code = "".join(f"if me == {task!r}: {end}\n" for task, end in ends.items())
    shell.script("peer.py", PEER + code)
    spec = shell.spec("s.json", {"script": "peer.py"}, **more)
    return Live(shell, "up", spec.name, "--except", "worker:1")


def line_for_hand(run: Live) -> str:
    """Return the line that the start panel shows for the task left out."""
    wait_for(lambda: "(eval " in run.said() and run.said().rpartition("(eval ")[2].count("\n"))
    (line,) = re.findall(r"^ *(\(eval .*)$", run.said(), re.MULTILINE)
    return str(line)


def config_of(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.partition("config ")[2].partition("\n")[0])
    return found


def test_the_shown_line_starts_the_task_that_was_left_out(shell: CommandLine) -> None:
    run = up(shell, {"worker:1": PRINTS_AND_EXITS})
    line = line_for_hand(run)
    wait_for(lambda: "waiting for worker:1 at 127.0.0.1:" in said_of(shell, run))
    assert unprinted("guides/your_own_script.md", "by hand", run.said()) == []
    (address,) = run.state()["by_hand"].values()
    assert f"by hand worker:1 at {address}" in said_of(shell, run)

    by_hand = shell.shell(line)

    assert by_hand.code == 0, by_hand.err
    assert run.end() == 0, run.said()
    ours, theirs = config_of(run.log("worker:0")), config_of(by_hand.out.decode())
    assert ours["cluster"] == theirs["cluster"]
    assert ours["cluster"]["worker"][1] == address
    assert theirs["task"] == {"type": "worker", "index": 1}
    assert [task["task"] for task in run.state()["tasks"]] == ["worker:0"]
    assert {path.name for path in gathered(run)} == {"model-1.keras"}
    own = run.folder / "tasks" / "worker-1" / "checkpoints"
    assert (own / "model-1.keras").exists(), "it saves where it would have saved"


def test_a_failure_of_a_task_started_by_hand_causes_no_restart(shell: CommandLine) -> None:
    ends = {"worker:0": FOLLOWS, "worker:1": "raise ValueError('mine')"}
    run = up(shell, ends, supervision={"restart_on_error": True, "max_restarts": 3})
    assert shell.shell(line_for_hand(run)).code == 1
    assert run.end() == 1, run.said()
    cause = run.state()["diagnosis"]["root_cause"]
    assert cause["task"] == "worker:1"
    assert "it was started by hand" in cause["reason"]
    assert not [event for event in run.events() if event["type"] == "restarting"]


def test_the_start_deadline_names_the_task_that_nobody_started(shell: CommandLine) -> None:
    run = up(shell, {}, supervision={"start_deadline_s": 2})
    assert run.end() == 4, run.said()
    (address,) = run.state()["by_hand"].values()
    assert f"worker:1 at {address}: nothing listens there yet" in run.said()
