"""`kill -9` of coordinator, agent or guard leaves nothing of the run behind and is reported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import time

import pytest

from .commandline import CommandLine
from .live import FAMILY, Family, Live, is_alive, the_status

LIMIT_S = 20.0
"""A guard against a hang; docs/benchmarks.md has the time it takes."""
TIMES = 5


def start(shell: CommandLine, count: int) -> list[tuple[Live, Family]]:
    """Start runs of the installed command and wait for all their tasks and children."""
    shell.forks = False
    shell.script("family.py", FAMILY)
    before = len(shell.runs())
    runs = [
        Live(shell, "run", "-n", "2", "family.py", name=f"r{before + number}")
        for number in range(count)
    ]
    shell.forks = True  # for commands that only read
    return [(run, Family(run)) for run in runs]


def kill(run: Live, *who: str, number: int = signal.SIGKILL) -> None:
    agent, guard = run.agents()
    pids = {"coordinator": run.process.pid, "agent": agent, "guard": guard}
    for name in who:
        with contextlib.suppress(ProcessLookupError):  # the agent may have ended its own life first
            os.kill(pids[name], number)


def assert_all_gone(run: Live, family: Family) -> float:
    since = time.monotonic()
    assert len(family.living()) <= 6
    took = family.assert_gone()
    while any(is_alive(pid) for pid in run.agents()):
        assert time.monotonic() - since < LIMIT_S, "the agent or the guard lives on"
        time.sleep(0.005)
    return took


@pytest.mark.slow
@pytest.mark.parametrize(
    "who",
    [("coordinator",), ("agent",), ("guard",), ("coordinator", "agent")],
    ids="+".join,
)
def test_five_of_five_kills_leave_no_process(shell: CommandLine, who: tuple[str, ...]) -> None:
    took = []
    for run, family in start(shell, TIMES):
        assert len(family.living()) == 6
        kill(run, *who)
        took.append(assert_all_gone(run, family))
        code = run.end()
        assert code == (-signal.SIGKILL if "coordinator" in who else 3), run.said()
    assert shell.run("prune", "--keep", "0", "-y").code == 0

    assert len(took) == TIMES
    print(f"{'+'.join(who)}: median {statistics.median(took):.3f} s, most {max(took):.3f} s")


@pytest.mark.parametrize(
    ("who", "number"),
    [("agent", signal.SIGKILL), ("agent", signal.SIGTERM), ("guard", signal.SIGKILL)],
)
def test_without_its_agent_or_guard_a_run_ends_with_3_and_names_the_node(
    shell: CommandLine, who: str, number: int
) -> None:
    ((run, family),) = start(shell, 1)

    kill(run, who, number=number)

    assert run.end() == 3
    assert_all_gone(run, family)
    said = run.said()
    assert "node local is lost" in said
    assert f"{run.run_id} failed after" in said
    status = the_status(shell, run.run_id)
    assert (status["status"], status["exit_code"]) == ("failed", 3)
    assert not {"running", "starting"} & {task["state"] for task in status["tasks"]}
    events = run.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [e["node"] for e in events if e["type"] == "node_lost"] == ["local"]
    assert events[-1]["type"] == "run_finished"


def test_without_its_coordinator_a_run_is_lost_and_every_command_says_so(
    shell: CommandLine,
) -> None:
    ((run, family),) = start(shell, 1)
    run_id = run.run_id

    kill(run, "coordinator")
    run.end()
    assert_all_gone(run, family)

    listed = json.loads(shell.run("ps", "-a", "--json").out)
    assert [(found["run"], found["status"]) for found in listed] == [(run_id, "lost")]
    assert json.loads(shell.run("ps", "--json").out) == []
    assert the_status(shell, run_id)["status"] == "lost"
    assert "lost" in shell.run("status").out.decode()
    waited = shell.run("wait", run_id)
    assert waited.code == 3
    assert "is lost: its coordinator died" in waited.err
    down = shell.run("down", run_id)
    assert down.code == 0
    assert "its coordinator died" in down.err
    nobody = shell.run("down")
    assert (nobody.code, "no run is live" in nobody.err) == (2, True)
    assert shell.run("rm", run_id).code == 0
    assert shell.runs() == []
