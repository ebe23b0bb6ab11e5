"""The curves and the timeline of a run, against a reader that parses every line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.rundir import events as ev
from tfcluster.rundir import series
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import to_line
from tfcluster.rundir.series import Point, downsample, read_history

START = 1_700_000_000.0


def folder(tmp_path: Path, *events: Event, tail: bytes = b"") -> RunPaths:
    """Return a run folder whose events happen one second after another."""
    lines = (to_line(event, seq=i + 1, time=START + i) for i, event in enumerate(events))
    paths = RunPaths(tmp_path)
    paths.events.write_bytes(b"".join(lines) + tail)
    return paths


def progress(step: int, task: str = "worker:0", **metrics: float) -> ev.Progress:
    return ev.Progress(
        task=task, attempt=1, step=step, metrics=metrics, steps_per_second=10.0 + step
    )


def points_of(history: series.History, name: str, task: str = "worker:0") -> list[Point]:
    found = [c for c in history.curves if (c.task, c.name) == (task, name)]
    return list(found[0].points) if found else []


def parsed(paths: RunPaths) -> Iterator[dict[str, Any]]:
    for line in paths.events.read_bytes().split(b"\n"):
        try:
            yield json.loads(line)
        except ValueError:
            continue


def naive_loss(paths: RunPaths) -> list[Point]:
    return [
        (round(event["time"] - START, 3), event["step"], float(event["metrics"]["loss"]))
        for event in parsed(paths)
        if event["type"] == "progress"
    ]


def test_curves_have_time_step_and_value_and_the_chief_comes_first(tmp_path: Path) -> None:
    used = ev.Usage(node="local", tasks={"ps:0": {"rss_bytes": 5e8, "cores": 1.5}})
    history = read_history(
        folder(tmp_path, progress(1, "worker:1", loss=2.0), used, progress(2, "chief:0", loss=1.0))
    )
    assert history.started_at == START
    assert history.chief == "chief:0"
    assert [(c.task, c.kind, c.name) for c in history.curves] == [
        ("chief:0", "metric", "loss"),
        ("chief:0", "speed", "steps_per_second"),
        ("worker:1", "metric", "loss"),
        ("worker:1", "speed", "steps_per_second"),
        ("ps:0", "usage", "rss_bytes"),
        ("ps:0", "usage", "cores"),
    ]
    assert points_of(history, "loss", "chief:0") == [(2.0, 2, 1.0)]
    assert points_of(history, "rss_bytes", "ps:0") == [(1.0, None, 5e8)]


def test_memory_has_the_step_that_its_task_was_at(tmp_path: Path) -> None:
    used = ev.Usage(node="local", tasks={"worker:0": {"rss_bytes": 1.0}})
    again = ev.TaskStarted(task="worker:0", attempt=2, node="local", pid=1)
    found = points_of(read_history(folder(tmp_path, progress(7), used, again, used)), "rss_bytes")
    assert found == [(1.0, 7, 1.0), (3.0, None, 1.0)], "a new attempt has no step yet"


def test_the_parts_of_steps_have_seconds_per_step_and_are_sampled_together(tmp_path: Path) -> None:
    def steps(number: int) -> ev.StepTimes:
        is_slow = number == 123
        parts = {"input": 3.0 if is_slow else number % 7 / 10, "compute": (number % 5 + 1) / 10}
        about = {"task": "worker:0", "attempt": 1, "step": 10 * number, "steps": 10}
        return ev.StepTimes(**about, seconds=sum(parts.values()), parts=parts)  # type: ignore[arg-type]

    paths = folder(tmp_path, progress(1), *map(steps, range(1, 300)))
    history = read_history(paths, most=40)
    assert [(c.kind, c.name) for c in history.curves][1:] == [
        ("step", "input"),
        ("step", "compute"),
    ]
    waits, computes = points_of(history, "input"), points_of(history, "compute")
    assert 20 < len(waits) <= 40
    assert waits[0] == (1.0, 10, 0.01)
    assert (123.0, 1230, 0.3) in waits, "the longest step stays"
    assert [point[:2] for point in waits] == [point[:2] for point in computes]


def test_the_timeline_has_what_happened_and_none_of_the_reports(tmp_path: Path) -> None:
    happened = (
        ev.RunStarted(version="1", run="r"),
        ev.TaskStarted(task="worker:0", attempt=1, node="local", pid=1),
        progress(1, loss=1.0),
        ev.PortsHeld(node="local", ports={}),
        ev.Restarting(reason='he said "type":"progress"', attempt=2, of=3),
        ev.StepTimes(task="worker:0", attempt=1, step=3, steps=3, seconds=1.0, parts={}),
        ev.StepVerdict(attempt=2, bound="compute"),
        ev.RunFinished(status="failed", exit_code=1),
    )
    timeline = read_history(folder(tmp_path, *happened)).timeline
    assert [(m.time, m.type) for m in timeline] == [
        (0.0, "run_started"),
        (1.0, "task_started"),
        (4.0, "restarting"),
        (6.0, "step_verdict"),
        (7.0, "run_finished"),
    ]
    assert timeline[2].event["reason"] == 'he said "type":"progress"'


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    line = to_line(progress(2, loss=0.5), seq=2, time=START + 9)
    paths = folder(tmp_path, progress(1, loss=1.0), tail=line[:-20])
    first = read_history(paths)
    assert points_of(first, "loss") == [(0.0, 1, 1.0)]
    with paths.events.open("ab") as file:
        file.write(line[-20:])
    assert points_of(read_history(paths), "loss") == [(0.0, 1, 1.0), (9.0, 2, 0.5)]


def test_as_a_dict_a_history_is_a_table_with_columns_of_one_length(tmp_path: Path) -> None:
    used = ev.Usage(node="local", tasks={"worker:0": {"rss_bytes": 5e8}})
    steps = ev.StepTimes(
        task="worker:0", attempt=1, step=4, steps=2, seconds=1.0, parts={"input": 0.5}
    )
    history = read_history(
        folder(
            tmp_path, progress(1, "worker:1", loss=2.0), progress(2, loss=1.0, acc=0.5), used, steps
        )
    )
    assert {name: [str(value) for value in values] for name, values in history.items()} == {
        "task": ["worker:0", "worker:0", "worker:0", "worker:1"],
        "time": ["1.0", "2.0", "3.0", "0.0"],
        "step": ["2", "2", "4", "1"],
        "acc": ["0.5", "nan", "nan", "nan"],
        "loss": ["1.0", "nan", "nan", "2.0"],
        "steps_per_second": ["12.0", "nan", "nan", "11.0"],
        "rss_bytes": ["nan", "500000000.0", "nan", "nan"],
        "input_s": ["nan", "nan", "0.25", "nan"],
    }
    empty = read_history(RunPaths(tmp_path / "none"))
    assert dict(empty) == {"task": [], "time": [], "step": []}


def test_a_missing_or_empty_file_is_an_empty_history(tmp_path: Path) -> None:
    assert read_history(RunPaths(tmp_path)).curves == ()
    assert read_history(folder(tmp_path)).timeline == ()


def test_values_that_are_not_finite_are_strings_in_json(tmp_path: Path) -> None:
    events = [progress(i, loss=v) for i, v in enumerate((1.0, math.nan, math.inf, -math.inf))]
    history = read_history(folder(tmp_path, *events))
    assert math.isnan(points_of(history, "loss")[1][2])
    shown = json.loads(json.dumps(history.to_json(), allow_nan=False))
    values = [point[2] for point in shown["curves"][0]["points"]]
    assert values == [1.0, "NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"\xff\xfe",
        b'{"type":"progress"}',
        b'{"time":"now","type":"progress","task":"worker:0","metrics":{"loss":1}}',
        b'{"time":1e999,"type":"progress","task":"worker:0","metrics":{"loss":1}}',
        b'{"time":5,"type":"progress","task":7,"metrics":{"loss":1}}',
        b'{"time":5,"type":"progress","task":"worker:0","metrics":{"loss":true,"x":[1],"y":"z"}}',
        b'{"time":5,"type":"progress","task":"w","metrics":{"loss":1' + b"0" * 400 + b"}}",
        b'{"time":5,"type":"usage","tasks":{"worker:0":3}}',
        b'{"time":5,"type":"usage","tasks":[]}',
        b'{"time":5,"type":"step_times","task":"worker:0","steps":0,"parts":{"input":1}}',
        b'{"time":5,"type":"step_times","task":"worker:0","steps":1,"parts":["input"]}',
        b'{"time":5,"type":"an_invention"}',
        b'{"time":5,"type":"progress","task":"w","metrics":' + b"[" * 100_000 + b"}",
        b'{"time":5,"type":"restarting","x":' + b'{"a":' * 50 + b"1" + b"}" * 50 + b"}",
        b'{"time":5,"type":"warned","message":"' + b"x" * 3_000_000 + b'"}',
    ],
    ids=lambda line: line[:40],
)
def test_what_is_malformed_is_left_out(tmp_path: Path, line: bytes) -> None:
    paths = folder(tmp_path, progress(1, loss=1.0), tail=line + b"\n")
    with paths.events.open("ab") as file:
        file.write(to_line(progress(3, loss=0.5), seq=9, time=START + 9))
    history = read_history(paths)
    assert points_of(history, "loss") == [(0.0, 1, 1.0), (9.0, 3, 0.5)]
    json.dumps(history.to_json(), allow_nan=False)


def test_many_tasks_and_names_are_limited(tmp_path: Path) -> None:
    events = [
        progress(1, f"worker:{i}", **{f"metric{j}": 1.0 for j in range(50)})
        for i in reversed(range(80))
    ]
    history = read_history(folder(tmp_path, *events))
    assert history.chief == "worker:0", "although many tasks report before it"
    curves = history.curves
    assert len({curve.task for curve in curves}) == 65, "the chief besides"
    assert len([c for c in curves if c.task == "worker:0" and c.kind == "metric"]) == 32


def test_of_many_warnings_the_first_and_the_last_stay(tmp_path: Path) -> None:
    warnings = [ev.Warned(message=f"warning {i}") for i in range(1000)]
    end = ev.RunFinished(status="succeeded", exit_code=0)
    history = read_history(folder(tmp_path, *warnings, end))
    messages = [moment.event.get("message") for moment in history.timeline]
    assert messages[0] == "warning 0"
    assert messages[-2] == "warning 999"
    assert len(messages) + history.skipped == 1001


def long_file(tmp_path: Path) -> RunPaths:
    """Return a run folder that is too long to be parsed whole."""

    def events() -> Iterator[Event]:
        for i in range(6_000):
            for task in ("worker:0", "worker:1", "worker:2", "worker:3"):
                value = math.nan if (i, task) == (3000, "worker:0") else 1 / (1 + i)
                yield progress(i, task, loss=value, accuracy=i / 6_000, padding=0.123456789)
            if i % 1000 == 500:
                yield ev.CheckpointGathered(path=f"ckpt-{i}", step=i, kind="tf")

    paths = folder(tmp_path, *events())
    assert paths.events.stat().st_size > series._PARSED_WHOLE_BYTES
    return paths


def test_a_long_file_is_sampled_and_keeps_its_ends_nan_and_all_rare_events(tmp_path: Path) -> None:
    history = read_history(long_file(tmp_path), most=300)
    points = points_of(history, "loss")
    assert 200 < len(points) <= 300
    assert points[0] == (0.0, 0, 1.0)
    assert points[-1][1:] == (5999, 1 / 6000)
    assert any(math.isnan(value) for _, _, value in points)
    assert [m.event["step"] for m in history.timeline] == [500, 1500, 2500, 3500, 4500, 5500]
    for task in ("worker:1", "worker:2", "worker:3"):  # no task falls between the samples
        assert len(points_of(history, "loss", task)) > 100


def test_a_sampled_point_is_one_that_was_written(tmp_path: Path) -> None:
    for time, step, value in points_of(read_history(long_file(tmp_path)), "loss"):
        assert step is not None
        assert math.isnan(value) or value == pytest.approx(1 / (1 + step))
        assert abs(time - 4 * step) <= 10


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(losses=st.lists(numbers, max_size=60))
def test_short_files_are_read_as_by_a_naive_reader(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float]
) -> None:
    tmp_path = tmp_path_factory.mktemp("run")
    paths = folder(tmp_path, *(progress(i, loss=loss) for i, loss in enumerate(losses)))
    found = points_of(read_history(paths), "loss")
    assert repr(found) == repr(naive_loss(paths))  # NaN != NaN


@given(values=st.lists(numbers, max_size=300), most=st.integers(8, 100))
def test_fewer_points_keep_ends_extremes_and_what_is_not_finite(
    values: list[float], most: int
) -> None:
    points = [(float(i), i, value) for i, value in enumerate(values)]
    kept = downsample(points, most)
    assert len(kept) <= most
    assert [p for p in points if p in kept] == list(kept)  # in order, none is invented
    if not points:
        return
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    finite = [value for value in values if math.isfinite(value)]
    shown = [value for _, _, value in kept if math.isfinite(value)]
    assert ([min(finite), max(finite)] if finite else []) == (
        [min(shown), max(shown)] if shown else []
    )
    assert len(finite) == len(values) or len(shown) < len(kept)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
TYPES = ("progress", "usage", "step_times", "warned")
fields = st.fixed_dictionaries(
    {"time": st.just(5.0) | json_values, "type": st.sampled_from(TYPES)},
    optional={
        "task": st.just("worker:0") | json_values,
        "step": json_values,
        "metrics": json_values,
        "tasks": st.dictionaries(st.text(), json_values) | json_values,
        "steps_per_second": json_values,
        "steps": st.just(10) | json_values,
        "parts": st.dictionaries(st.text(), json_values) | json_values,
    },
)


@given(events=st.lists(fields | st.dictionaries(st.text(), json_values)))
def test_no_event_crashes_the_reader(
    tmp_path_factory: pytest.TempPathFactory, events: list[Mapping[str, Any]]
) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    lines = (json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)
    paths.events.write_bytes(b"".join(lines))
    json.dumps(read_history(paths).to_json(), allow_nan=False)
