"""Who is waited for, and where: from the stacks of all tasks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.launcher.supervision.story import EXECUTE, IN_FIT, stack

from tfcluster.agent import catalogue as msg
from tfcluster.supervision import stalls
from tfcluster.supervision.stalls import Activity, Position, called_in, explain_stall, position_of

FIT = "/home/me/train.py:20 model.fit(data)"
AT_FIT = "train.py:20 `model.fit`"
KERAS = "/site-packages/keras/src/callbacks/callback_list.py:172"
SCRIPT_OPS = "/dist-packages/tensorflow/python/ops/script_ops.py:269"
THREADING = "/usr/lib/python3.11/threading.py:324"
SLEEPS = stack("/home/me/hang.py:12 time.sleep(9)", KERAS, FIT)
FEEDS = [*IN_FIT, *stack("/home/me/data.py:7 yield read(path)", SCRIPT_OPS)]
SUMS = "/home/me/train.py:9 context.all_reduce('SUM', x)"
LOSSES = stack(f"{EXECUTE}:53", SUMS, "/home/me/train.py:30 sum_losses(x)", FIT)
WEIGHTS = stack(f"{EXECUTE}:53", SUMS, "/home/me/train.py:34 sum_weights(x)", FIT)
EVALUATES = stack(f"{EXECUTE}:53", "/home/me/train.py:44 model.evaluate(test)")


def names(*functions: str) -> list[msg.Thread]:
    """Return a thread inside of TensorFlow's functions with these names."""
    frames = [msg.Frame(file=EXECUTE, line=53, function=name) for name in functions]
    return [msg.Thread(frames=[*frames, *stack(FIT)[0].frames])]


@pytest.mark.parametrize(
    ("threads", "activity", "place"),
    [
        (IN_FIT, Activity.IN_STEP, "train.py:20 `model.fit`"),
        (SLEEPS, Activity.ELSEWHERE, "hang.py:12 `time.sleep`"),
        # A library that the script calls has no line of the script.
        (
            stack("/site-packages/PIL/Image.py:9", "/home/me/data.py:3 Image.open(path)"),
            Activity.ELSEWHERE,
            "data.py:3 `Image.open`",
        ),
        # The main thread waits for those that launch eager collectives (cross_device_ops.py).
        (
            stack(
                THREADING, "/site-packages/tensorflow/python/distribute/cross_device_ops.py:8", FIT
            ),
            Activity.IN_STEP,
            "train.py:20 `model.fit`",
        ),
        (stack("/site-packages/jax/_src/array.py:623", FIT), Activity.IN_STEP, AT_FIT),
        (stack("/site-packages/keras/src/backend/jax/core.py:9", FIT), Activity.IN_STEP, AT_FIT),
        (stack("/site-packages/torch/autograd/graph.py:9", FIT), Activity.IN_STEP, AT_FIT),
        (stack("/site-packages/torch/utils/data/dataloader.py:9", FIT), Activity.ELSEWHERE, AT_FIT),
        # A script that trains in a thread of its own.
        (
            [*stack(THREADING, "/home/me/main.py:5 thread.join()"), *IN_FIT],
            Activity.IN_STEP,
            "train.py:20 `model.fit`",
        ),
        (FEEDS, Activity.AWAITS_INPUT, "data.py:7 `read`"),
        (names("_next_internal"), Activity.AWAITS_INPUT, "train.py:20 `model.fit`"),
        (names("make_iterator"), Activity.AWAITS_INPUT, "train.py:20 `model.fit`"),
        (names("quick_execute", "call_function"), Activity.IN_STEP, "train.py:20 `model.fit`"),
        (
            stack(
                "/site-packages/tensorflow/python/training/server_lib.py:9",
                "/home/me/server.py:3 server.join()",
            ),
            Activity.SERVES,
            "server.py:3 `server.join`",
        ),
        (
            stack("/site-packages/tensorflow/python/framework/func_graph.py:77", FIT),
            Activity.TRACES,
            "train.py:20 `model.fit`",
        ),
        ([], Activity.UNKNOWN, ""),
    ],
)
def test_a_position_from_stacks(threads: list[msg.Thread], activity: Activity, place: str) -> None:
    found = position_of(threads)
    assert (found.activity, found.place) == (activity, place)


@pytest.mark.parametrize(
    ("positions", "line", "causes"),
    [
        (
            {"worker:0": IN_FIT, "worker:1": SLEEPS},
            "worker:1 is in hang.py:12 `time.sleep`; worker:0 waits for it in an all-reduce",
            ("worker:1",),
        ),
        (
            {"worker:0": SLEEPS, "worker:1": IN_FIT, "worker:2": SLEEPS},
            "worker:0, worker:2 are in hang.py:12 `time.sleep`;"
            " worker:1 waits for them in an all-reduce",
            ("worker:0", "worker:2"),
        ),
        (
            {"worker:0": IN_FIT, "worker:1": FEEDS},
            "worker:1 waits for its input in data.py:7 `read`;"
            " worker:0 waits for it in an all-reduce",
            ("worker:1",),
        ),
        (
            {"worker:0": IN_FIT, "worker:1": EVALUATES},
            "worker:0 waits in train.py:20 `model.fit`, worker:1 waits in train.py:44"
            " `model.evaluate`: each waits for the others",
            (),
        ),
        (
            {"worker:0": LOSSES, "worker:1": WEIGHTS, "worker:2": WEIGHTS},
            "worker:0 waits in train.py:30 `sum_losses`, worker:1, worker:2 wait in train.py:34"
            " `sum_weights`: each waits for the others",
            (),
        ),
        (
            {"worker:0": IN_FIT, "worker:1": IN_FIT},
            "worker:0, worker:1 wait in train.py:20 `model.fit`, for each other or for their input",
            (),
        ),
        (
            {"worker:0": IN_FIT, "worker:1": []},
            "worker:1 does not answer; worker:0 waits for it in an all-reduce",
            ("worker:1",),
        ),
        ({"worker:0": [], "worker:1": []}, "no task writes its stacks", ()),
    ],
    ids=[
        *("elsewhere", "two elsewhere", "input", "deadlock", "deadlock in one function"),
        *("all inside", "silent", "all silent"),
    ],
)
def test_tasks_that_train_together(
    positions: dict[str, list[msg.Thread]], line: str, causes: tuple[str, ...]
) -> None:
    found = explain_stall({task: position_of(at) for task, at in positions.items()}, together=True)
    assert (found.what, found.causes) == (line, causes)
    assert found.tasks.keys() == positions.keys()


CHIEF_JOINS = stack(f"{EXECUTE}:9", "/home/me/train.py:30 coordinator.join()")


@pytest.mark.parametrize(
    ("positions", "facts", "line"),
    [
        (
            {"worker:0": position_of(SLEEPS), "worker:1": Position(Activity.STOPPED, detail="it")},
            {"together": True},
            "worker:1 was stopped by it",
        ),
        (
            {"worker:1": position_of(EVALUATES)},
            {"together": True, "ended": ["worker:0"]},
            "worker:0 has ended; worker:1 waits in an all-reduce",
        ),
        (
            {"chief:0": position_of(CHIEF_JOINS)},
            {"together": False},
            "chief:0 waits in train.py:30 `coordinator.join`",
        ),
    ],
    ids=["stopped", "ended", "not together"],
)
def test_who_is_stopped_or_has_ended_comes_before_who_waits(
    positions: dict[str, Position], facts: dict[str, Any], line: str
) -> None:
    assert explain_stall(positions, **facts).what == line


def test_many_places_are_counted() -> None:
    positions = {
        f"worker:{n}": position_of(stack(f"/home/me/data.py:{n} read()")) for n in range(1, 6)
    }
    line = explain_stall(positions, together=False).what
    assert line.endswith("worker:3 is in data.py:3 `read`; 2 more places")


@pytest.mark.parametrize(
    ("code", "called"),
    [
        ("time.sleep(100)", "time.sleep"),
        ('print("loading"); time.sleep(100000)', "time.sleep"),
        ("data = load(read(path))", "load"),
        ("for x, y in dataset.take(3):", "dataset.take"),
        ("history = model.fit(", "model.fit"),
        ("x, y = next(iter(data))", "next"),
        ("with open(path) as file:", "open"),
        ("lock.acquire()", "lock.acquire"),
        ("open(path).read()", "open(…).read"),
        ("while True:", "while True:"),
        ("", ""),
    ],
)
def test_the_function_that_a_line_calls(code: str, called: str) -> None:
    assert called_in(code) == called


def test_the_longest_lines_are_cut() -> None:
    assert len(called_in("x = " + "a + " * 100)) < 70
    assert stalls.called_in("é" * 200).endswith("…")
