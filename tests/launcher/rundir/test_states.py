"""Every state in the table of states can be reached, and final states are never left."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tfcluster.rundir import states
from tfcluster.rundir.states import Status


def reached(table: Mapping[str, Mapping[str, str]], first: str) -> set[str]:
    found, waiting = {first}, [first]
    while waiting:
        new = set(table[waiting.pop()].values()) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize(
    ("table", "first"), [(states.NODE, "connecting"), (states.TASK, "waiting")]
)
def test_every_state_is_in_the_table_and_can_be_reached(
    table: Mapping[str, Mapping[str, str]], first: str
) -> None:
    assert reached(table, first) == set(table)


def test_a_run_reaches_every_state_that_is_not_final_and_leaves_no_final_one() -> None:
    assert set(states.RUN) == set(Status)
    found = reached(states.RUN, Status.STARTING)  # type: ignore[arg-type]
    seen = {Status.SUSPENDED}  # only its scheduler says that
    assert found == {status for status in Status if not status.is_final} - seen
    ends = {status for status in Status if status.is_final}
    assert {status for status in ends if states.RUN[status]} == {Status.INTERRUPTED}
    assert states.RUN[Status.INTERRUPTED] == {"run_continued": Status.STARTING}, "its job again"


def test_unknown_events_change_no_state() -> None:
    assert states.after(states.RUN, Status.SUCCEEDED, "restarting") is Status.SUCCEEDED
    assert states.after(states.RUN, Status.STOPPING, "restarting") is Status.STOPPING
    assert states.after(states.TASK, "succeeded", "node_lost") == "succeeded"
    assert states.after(states.TASK, "lost", "exited_badly") == "failed"


def test_an_ended_task_runs_again_only_after_a_start() -> None:
    for ended in ("succeeded", "failed", "stopped", "lost"):
        next_states = set(states.TASK[ended].values())
        assert next_states <= {"restarting", "starting", "succeeded", "failed", "stopped", "lost"}
        assert states.after(states.TASK, ended, "joined") == ended
