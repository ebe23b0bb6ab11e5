"""Runs beside each other: their numbers, what differs between them, and the room that takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.documentation import unprinted
from tests.launcher.report.recorded import START, failure, record, success

from tfcluster.report.comparison import Comparison, compare
from tfcluster.report.gather import gather
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.render import part_lines


def comparison_of(*runs: RunPaths) -> Comparison:
    return compare([gather(paths, now=START + 100) for paths in runs])


def text_of(comparison: Comparison, width: int) -> str:
    return "\n".join(line for t in comparison.tables(width) for line in part_lines(t, width))


def rows(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    return {row.name: row.values for row in (*comparison.numbers, *comparison.differences)}


def test_numbers_of_all_runs_stand_beside_each_other(home_dir: Path) -> None:
    found = rows(
        comparison_of(
            record(home_dir, success(), suffix="aaaa"),
            record(home_dir, failure(), name="other", suffix="bbbb"),
        )
    )
    assert found["status"] == ("succeeded", "failed (1)")
    assert found["step"] == ("9", "1")
    assert found["loss"] == ("0.1111", "2")
    assert found["accuracy"] == ("0.5", "–")
    assert found["restarts"] == ("1", "0")
    assert found["examples/s on average"] == ("80.0", "–")
    assert found["peak memory"] == ("800 MB", "–")
    assert found["checkpoint"] == ("step 4", "–")


def test_only_what_differs_between_the_specs_is_listed(home_dir: Path) -> None:
    def spec(rate: float, **more: object) -> dict[str, object]:
        args = ["data", "--lr", str(rate), "--epochs=3"]
        return {"cluster": {"worker": 2}, "job": {"script": "train.py", "args": args, **more}}

    comparison = comparison_of(
        record(home_dir, success(), suffix="aaaa", spec=spec(0.1)),
        record(home_dir, success(), suffix="bbbb", spec=spec(0.2, env={"A": "1"})),
    )
    assert {row.name: row.values for row in comparison.differences} == {
        "--lr": ("0.1", "0.2"),
        "job.env.A": ("–", "1"),
    }
    assert comparison.labels == ("demo aaaa", "demo bbbb")


def test_runs_of_one_spec_do_not_differ(home_dir: Path) -> None:
    runs = [record(home_dir, success(), suffix=suffix) for suffix in ("aaaa", "bbbb")]
    assert comparison_of(*runs).differences == ()


def test_of_a_repeated_option_the_last_counts(home_dir: Path) -> None:
    def spec(*args: str) -> dict[str, object]:
        return {"job": {"args": args}}

    comparison = comparison_of(
        record(home_dir, success(), suffix="aaaa", spec=spec("--epochs", "3", "--fast")),
        record(home_dir, success(), suffix="bbbb", spec=spec("--epochs", "3", "--epochs=5")),
    )
    assert {row.name: row.values for row in comparison.differences} == {
        "--epochs": ("3", "5"),
        "--fast": ("set", "–"),
    }


def test_the_table_of_the_guide_is_one_that_compare_prints(home_dir: Path) -> None:
    runs = [
        record(home_dir, success(), name=name, spec={"job": {"args": ["--epochs", epochs]}})
        for name, epochs in (("localhost-2w", "3"), ("longer", "5"))
    ]
    table = text_of(comparison_of(*runs), 80)
    metrics = "accuracy 0.9 0.9 learning_rate 0.1 0.1"
    assert unprinted("guides/report.md", "longer", table, metrics) == []


@pytest.mark.parametrize(("count", "tables"), [(2, 1), (3, 1), (6, 2)])
def test_the_table_fits_80_columns(home_dir: Path, count: int, tables: int) -> None:
    spec = {"job": {"module": "a_package.with.a_rather_long_name.and_a_module"}}
    runs = [
        record(home_dir, success(), suffix=f"aaa{n}", spec={**spec, "n": n}) for n in range(count)
    ]
    runs[0].spec.write_text('{"job": {"script": "a/folder/with/a/script/train.py"}}')
    found = comparison_of(*runs).tables(80)
    lines = [line for grid in found for line in part_lines(grid, 80)]
    assert max(map(len, lines)) <= 80
    assert len(found) == tables
    assert "".join(lines).count("succeeded") == count
    assert all(grid.headers[0] == "" for grid in found)  # none is stacked


def test_a_wide_screen_shows_all_values_whole(home_dir: Path) -> None:
    module = "a_package.with.a_rather_long_name.and_a_module"
    runs = [
        record(home_dir, success(), suffix="aaaa", spec={"job": {"module": module}}),
        record(home_dir, success(), suffix="bbbb", spec={}),
    ]
    assert module in text_of(comparison_of(*runs), 200)
    assert "and_a_module" in text_of(comparison_of(*runs), 60)  # modules differ at their end


def test_the_json_has_an_object_for_each_run(home_dir: Path) -> None:
    found = comparison_of(
        record(home_dir, success(), suffix="aaaa", spec={"n": 1}),
        record(home_dir, failure(), suffix="bbbb", spec={"n": 2}),
    ).to_json()
    assert [run["status"] for run in found] == ["succeeded", "failed"]
    assert [run["differences"] for run in found] == [{"n": "1"}, {"n": "2"}]
    json.dumps(found, allow_nan=False)
