"""A run in which no task reports its progress gets one line that says how to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import Replay, replay_of

from tfcluster.rundir import events as ev
from tfcluster.supervision.silence import HINT_S


@pytest.mark.parametrize("kind", ["training", "plain"])
def test_a_script_that_reports_nothing_gets_one_hint(kind: str) -> None:
    replay = replay_of(kind=kind).after(HINT_S - 1)
    assert replay.messages(ev.Hint) == []
    replay.after(1)
    (hint,) = replay.messages(ev.Hint)
    assert "reporting.progress(step, total=" in hint
    assert replay.after(3600).messages(ev.Hint) == [hint]


@pytest.mark.parametrize(
    ("report", "facts"),
    [
        ("progress", {"step": 1}),
        ("alive", {}),
        ("evaluated", {"step": 1}),
        ("saved", {"path": "x"}),
    ],
)
def test_any_work_that_one_task_reports_is_enough(report: str, facts: dict[str, Any]) -> None:
    replay = replay_of().says("worker:1", report, **facts).after(3600)
    assert replay.messages(ev.Hint) == []


def test_the_time_in_which_tasks_wait_for_each_other_does_not_count() -> None:
    replay = replay_of().after(5).says("worker:0", "waiting_for_peers").after(200)
    assert replay.messages(ev.Hint) == []
    replay.says("worker:0", "task_ready").after(HINT_S - 1)
    assert replay.messages(ev.Hint) == []
    assert len(replay.after(1).messages(ev.Hint)) == 1


def test_the_import_of_tensorflow_does_not_count() -> None:
    replay = replay_of().says("worker:0", "task_phase", name="importing TensorFlow").after(200)
    assert replay.messages(ev.Hint) == []
    replay.says("worker:0", "task_phase", name="").after(HINT_S - 1)
    assert replay.messages(ev.Hint) == []
    assert len(replay.after(1).messages(ev.Hint)) == 1


def test_a_child_without_hooks_is_named_with_its_command() -> None:
    replay = (
        replay_of().says("worker:1", "trains_in_child", command="python -E fit.py").after(HINT_S)
    )
    (hint,) = replay.messages(ev.Hint)
    assert "worker:1 seems to train in a child process" in hint
    assert "`python -E fit.py`" in hint
    assert "`tfcluster run SCRIPT`" in hint


def test_tasks_without_hooks_and_searches_get_none() -> None:
    assert Replay(plan_of(hooks=False)).after(100).messages(ev.Hint) == []
    assert Replay(replace(plan_of(), kind="tuner")).after(100).messages(ev.Hint) == []
