"""What the live view says about events: one line, or nothing."""

from __future__ import annotations

import pytest

from tfcluster.run import events as ev
from tfcluster.run.events import Event
from tfcluster.ui.talk import format_event


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (ev.Progress(task="worker:0", attempt=1, step=3), None),
        (ev.PrepareFinished(node="local", exit_code=0, duration_s=2), "prepared local in 2.0 s"),
        (
            ev.PrepareFinished(node="local", exit_code=2, duration_s=2),
            "prepare failed on local after 2.0 s: exit 2",
        ),
        (
            ev.TaskExited(task="ps:0", attempt=1, exit_code=None, signal=15, ended_by="tfcluster"),
            "ps:0 ended after 0.0 s: SIGTERM (stopped by tfcluster)",
        ),
        (
            ev.TaskError(
                task="worker:1",
                attempt=1,
                exception="ValueError",
                message="bad\x1b[2J shape\nand more",
                file="train.py",
                line=12,
            ),
            "worker:1 raised ValueError at train.py:12: bad shape",
        ),
        (
            ev.CheckpointGathered(path="checkpoints/ckpt-12", step=1200, kind="tf_checkpoint"),
            "gathered a checkpoint of step 1,200: checkpoints/ckpt-12",
        ),
        (
            ev.LogLost(task="worker:0", attempt=1, bytes=5_000_000, reason="No space left"),
            "5.0 MB of worker:0's log are lost: No space left",
        ),
        (ev.Warned(message="mind the gap"), "mind the gap"),
    ],
)
def test_events_are_told(event: Event, said: str | None) -> None:
    told = format_event(event.to_json())
    assert (told.text if told else None) == said


@pytest.mark.parametrize("event", [{}, {"type": "task_exited"}, {"type": "of_the_future"}])
def test_odd_events_say_nothing(event: dict[str, object]) -> None:
    assert format_event(event) is None
