"""Runs beside each other: their numbers, what differs between them, and the room that takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.documentation import unprinted
from tests.web.synthetic import SyntheticRun, new_run

from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.render import part_lines
from tfcluster.web.comparison import Comparison, compare

START = 1_700_000_000.0


def a_run(home: Path, name: str = "demo", spec: dict[str, Any] | None = None) -> SyntheticRun:
    run = new_run(home, name, started=START, spec=spec)
    run.start()
    run.train(2, 40, total=40)
    return run


def succeeded(home: Path, name: str = "demo", spec: dict[str, Any] | None = None) -> RunPaths:
    run = a_run(home, name, spec)
    run.restart("worker:1: killed by SIGKILL", from_step=40)
    run.train(42, 80, total=80)
    run.gather(80)
    run.end()
    return run.paths


def failed(home: Path, name: str = "demo", spec: dict[str, Any] | None = None) -> RunPaths:
    run = a_run(home, name, spec)
    run.fail()
    return run.paths


def comparison_of(*runs: RunPaths) -> Comparison:
    return compare(runs, now=START + 100)


def text_of(comparison: Comparison, width: int) -> str:
    return "\n".join(line for t in comparison.tables(width) for line in part_lines(t, width))


def differences(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    return {row.name: row.values for row in comparison.differences}


def test_numbers_of_all_runs_stand_beside_each_other(home_dir: Path) -> None:
    compared = comparison_of(succeeded(home_dir), failed(home_dir, "other"))
    found = {row.name: row.values for row in compared.numbers}
    assert found["status"] == ("succeeded", "failed (1)")
    assert found["step"] == ("80", "40")
    assert found["loss"] == ("0.9844", "1.491")
    assert found["restarts"] == ("1", "0")
    assert all(share.endswith("%") for share in found["goodput"])
    assert found["steps/s on average"] == ("10.0", "10.0")
    assert found["peak memory"] == ("520 MB", "414 MB")
    assert found["checkpoint"] == ("step 80", "–")


def test_of_a_damaged_run_what_can_be_read_is_compared(home_dir: Path) -> None:
    damaged = failed(home_dir, spec={"n": 1})
    damaged.state.write_text("{")
    compared = comparison_of(damaged, succeeded(home_dir, spec={"n": 2}))
    assert compared.statuses == ("damaged", "succeeded")
    assert compared.results[0].duration_s == pytest.approx(4.0, abs=0.1)
    assert differences(compared) == {"n": ("1", "2")}


def test_the_page_has_also_the_rows_for_which_a_terminal_has_no_room(home_dir: Path) -> None:
    found = comparison_of(succeeded(home_dir), failed(home_dir, "other")).to_page()
    settings, results = (
        {row["name"]: row["values"] for row in part["rows"]} for part in found["parts"]
    )
    assert settings["job.script"] == ("main.py", "main.py")
    assert results["reason"] == ("–", "worker:1: ValueError: bad batch")
    assert {"started", "host", "tasks", "duration"} <= results.keys()
    assert [(run["label"], run["arguments"]) for run in found["runs"]] == [
        ("demo", ""),
        ("other", ""),
    ]


def test_only_what_differs_between_the_specs_is_listed(home_dir: Path) -> None:
    def spec(rate: float, **more: object) -> dict[str, object]:
        args = ["data", "--lr", str(rate), "--epochs=3"]
        return {"cluster": {"worker": 2}, "job": {"script": "train.py", "args": args, **more}}

    runs = (
        succeeded(home_dir, spec=spec(0.1)),
        succeeded(home_dir, spec=spec(0.2, env={"A": "1"})),
    )
    comparison = comparison_of(*runs)
    assert differences(comparison) == {
        "--lr": ("0.1", "0.2"),
        "job.env.A": ("–", "1"),
    }
    assert comparison.labels == tuple(f"demo {run.run_id[-4:]}" for run in runs)
    found = comparison.to_json()
    assert [run["differences"]["--lr"] for run in found] == ["0.1", "0.2"]
    json.dumps(found, allow_nan=False)
    assert comparison_of(runs[0], runs[0]).differences == ()


def test_of_a_repeated_option_the_last_counts(home_dir: Path) -> None:
    def spec(*args: str) -> dict[str, object]:
        return {"job": {"args": args}}

    comparison = comparison_of(
        succeeded(home_dir, spec=spec("--epochs", "3", "--fast")),
        succeeded(home_dir, spec=spec("--epochs", "3", "--epochs=5")),
    )
    assert differences(comparison) == {
        "--epochs": ("3", "5"),
        "--fast": ("set", "–"),
    }


def test_the_page_shows_at_each_run_the_arguments_in_which_it_differs(home_dir: Path) -> None:
    def spec(words: str, seed: str, data: str) -> dict[str, object]:
        args = [*words.split(), "--batch", "64", f"--seed={seed}"]
        job = {"args": args, "prepare": {"script": "prepare.py", "args": ["--seed", data]}}
        return {"job": job, "supervision": {"grace_s": seed}}

    comparison = comparison_of(
        succeeded(home_dir, spec=spec("small --fast", "1", "7")),
        succeeded(home_dir, spec=spec("large", "2", "8")),
    )
    found = [run["arguments"] for run in comparison.to_page()["runs"]]
    assert found == ["small --fast --seed 1", "large --seed 2"]
    assert differences(comparison)["job.prepare.args --seed"] == ("7", "8")


def test_the_table_of_the_guide_is_one_that_compare_prints(home_dir: Path) -> None:
    runs = [
        succeeded(home_dir, name, {"job": {"args": ["--epochs", epochs]}})
        for name, epochs in (("localhost-2w", "3"), ("longer", "5"))
    ]
    table = text_of(comparison_of(*runs), 80)
    others = "accuracy 0.9 0.9 learning_rate 0.1 0.1 examples/s on average 9 9"
    assert unprinted("guides/report.md", "longer", table, others) == []


@pytest.mark.parametrize(("count", "tables"), [(2, 1), (3, 1), (6, 2)])
def test_the_table_fits_80_columns(home_dir: Path, count: int, tables: int) -> None:
    spec = {"job": {"module": "a_package.with.a_rather_long_name.and_a_module"}}
    runs = [succeeded(home_dir, spec={**spec, "n": n}) for n in range(count)]
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
        succeeded(home_dir, spec={"job": {"module": module}}),
        succeeded(home_dir, spec={"job": {}}),
    ]
    assert module in text_of(comparison_of(*runs), 200)
    assert "and_a_module" in text_of(comparison_of(*runs), 60)  # modules differ at their end
