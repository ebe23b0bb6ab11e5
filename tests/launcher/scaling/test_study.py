"""A study splits steps into compute and collective, compares cells, and says what to doubt."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tfcluster.scaling import study as studies
from tfcluster.scaling.study import Measured, Study

VOLUME = 4_000_000


def cell(workers: int, rate: float | None, step_s: float, **more: object) -> Measured:
    communication = None if workers == 1 else "RING"
    found = Measured(workers, communication, rate, (step_s,) * 9, VOLUME, 8.0 * workers, 0.2)
    return replace(found, **more)  # type: ignore[arg-type]


def analyse(name: str, cells: list[Measured], **more: Any) -> Study:
    return studies.analyse(name, cells, **{"backend": "simulated", **more})


def ring_s(workers: int, rate: float) -> float:
    return 2 * (workers - 1) / workers * VOLUME * 8 / rate


def study(workers: tuple[int, ...] = (2, 3), predict: tuple[int, ...] = ()) -> Study:
    """Return a study of exact cells: 50 ms of compute, 90 % of the rate reached, no latency."""
    cells = [
        cell(n, rate, 0.05 + ring_s(n, rate) / 0.9) for n, rate in product(workers, (1e8, 1e9))
    ]
    return analyse("demo", [cell(1, None, 0.05), *cells], cores=4, predict=predict)


def test_a_step_is_the_compute_time_of_one_worker_and_the_collective() -> None:
    slow = study().cells[1]
    assert (slow.compute_s, slow.collective_s) == pytest.approx((0.05, 0.32 / 0.9))
    assert slow.ring_s == pytest.approx(0.32)
    assert slow.of_ring == pytest.approx(1 / 0.9)
    assert slow.efficiency == pytest.approx(0.05 / slow.median_s)
    assert slow.examples_per_second == pytest.approx(16 / slow.median_s)


def test_the_fit_finds_the_part_of_the_rate_that_is_reached() -> None:
    found = study()
    assert found.reached("RING") == pytest.approx(0.9)
    assert [c.error for c in found.cells] == pytest.approx([0.0] * 5, abs=1e-9)


def test_cells_of_predicted_numbers_only_test_the_prediction() -> None:
    found = study((2, 4), predict=(4,))
    assert [c.is_held_out for c in found.cells] == [False, False, False, True, True]
    assert found.held_out_error == pytest.approx(0.0, abs=1e-9)
    assert [(p.workers, p.rate) for p in found.predictions] == [(4, 1e8), (4, 1e9)]


def test_a_global_batch_of_fixed_size_shortens_the_compute_time() -> None:
    alone = cell(1, None, 0.05, global_batch=32.0)
    found = analyse("demo", [alone, cell(2, 1e9, 0.05, global_batch=32.0)], cores=4)
    assert found.cells[1].compute_s == pytest.approx(0.025)
    assert found.cells[1].efficiency == pytest.approx(0.5)
    assert any("scaled with it" in note for note in found.notes)


def test_an_unknown_volume_is_fitted_and_said() -> None:
    cells = [cell(1, None, 0.05), *(cell(2, r, 0.05 + ring_s(2, r)) for r in (1e8, 1e9))]
    found = analyse("demo", [replace(c, gradient_bytes=None) for c in cells], cores=4)
    assert (found.cells[1].ring_s, found.cells[1].of_ring) == (None, None)
    assert found.fits["RING"].bits == pytest.approx(VOLUME * 8)
    assert found.reached("RING") is None
    assert any("does not report the size" in note for note in found.notes)


def test_each_communication_has_a_fit_of_its_own() -> None:
    auto = [replace(cell(2, r, 0.1 + ring_s(2, r)), communication="AUTO") for r in (1e8, 1e9)]
    ring = [cell(2, r, 0.05 + ring_s(2, r) * 2) for r in (1e8, 1e9)]
    found = analyse("demo", [cell(1, None, 0.05), *ring, *auto], cores=4)
    assert found.reached("RING") == pytest.approx(0.5, rel=0.01)
    assert found.reached("AUTO") == pytest.approx(1.0, rel=0.1)


def test_the_json_has_every_cell_fit_and_prediction() -> None:
    data = json.loads(json.dumps(study((2, 4), predict=(4, 8)).to_json()))
    assert [c["workers"] for c in data["cells"]] == [1, 2, 2, 4, 4]
    assert data["cells"][1]["collective_s"] == pytest.approx(0.32 / 0.9)
    assert data["cells"][0]["ring_s"] is None
    assert data["fits"]["RING"]["reached_rate"] == pytest.approx(0.9)
    assert {p["workers"] for p in data["predictions"]} == {4, 8}
    assert data["gradient_bytes"] == VOLUME


def test_a_held_out_cell_does_not_change_the_fit() -> None:
    cells = [cell(1, None, 0.05), *(cell(2, r, 0.05 + ring_s(2, r)) for r in (1e8, 1e9))]
    wrong = cell(4, 1e9, 99.0)
    found = analyse("demo", [*cells, wrong], cores=8, predict=(4,))
    assert found.reached("RING") == pytest.approx(1.0)
    assert found.held_out_error == pytest.approx(1.0, abs=0.01)


def test_too_few_rates_or_cells_are_said() -> None:
    found = analyse("demo", [cell(1, None, 0.05), cell(2, 1e9, 0.1)], cores=4)
    assert any("cannot be told apart" in note for note in found.notes)
    assert any("no interval" in note for note in study((2,)).notes)
    assert not any("no interval" in note for note in study((2, 3)).notes)


@pytest.mark.parametrize(
    ("alone_s", "alone_cores", "workers", "busy_cores", "load", "is_crowded"),
    [
        (0.05, 1.0, 4, 0.5, 2, True),  # they need more cores than there are
        (0.001, 0.2, 2, 0.95, None, True),  # they keep all cores busy
        (0.001, 1.0, 4, 0.2, None, False),  # a short computation may wait for a core
        (0.05, 0.1, 4, 0.3, 1, False),  # they wait most of the time
    ],
)
def test_workers_that_have_too_few_cores_compute_longer_and_are_marked(
    alone_s: float, alone_cores: float, workers: int, busy_cores: float, load: int | None,
    is_crowded: bool,
) -> None:  # fmt: skip
    alone = cell(1, None, alone_s, busy_cores=alone_cores)
    found = analyse("demo", [alone, cell(workers, 1e9, 0.2, busy_cores=busy_cores)], cores=2)
    assert found.cells[1].is_crowded is is_crowded
    assert load is None or found.cells[1].load == load
    assert load is None or found.cells[1].compute_s == pytest.approx(alone_s * load)
    assert any("need more than the 2 cores" in note for note in found.notes) is is_crowded


PARTS = {"input": 0.01, "compute": 0.03, "waiting": 0.02, "transfer": 0.03, "callbacks": 0.01}


def test_on_the_real_cluster_the_workers_have_measured_what_a_step_consists_of() -> None:
    alone = cell(1, None, 0.05, parts={"compute": 0.04, "other": 0.01})
    found = analyse("demo", [alone, cell(2, None, 0.1, parts=PARTS)], backend="ssh", cores=None)
    assert not found.is_simulated
    assert [c.compute_s for c in found.cells] == [0.04, 0.03]
    assert [c.collective_s for c in found.cells] == pytest.approx([0.0, 0.05])
    assert found.cells[1].efficiency == pytest.approx(0.5)
    assert (found.fits, found.cells[1].ring_s, found.notes) == ({}, None, ())
    data = json.loads(json.dumps(found.to_json()))
    assert (data["backend"], data["cores"], data["is_simulated"]) == ("ssh", None, False)
    assert data["cells"][1]["parts"] == PARTS


def test_without_reported_parts_nothing_is_said_about_them() -> None:
    cells = [cell(1, None, 0.05), replace(cell(2, None, 0.1), communication="NCCL")]
    found = analyse("demo", cells, backend="slurm", cores=None, notes=("uneven",))
    assert [(c.compute_s, c.collective_s) for c in found.cells] == [(None, None)] * 2
    assert (found.fits, found.notes) == ({}, ("uneven",))


def test_the_batch_decides_what_efficiency_means() -> None:
    alone = cell(1, None, 0.05, global_batch=32.0)
    same = analyse("demo", [alone, cell(2, None, 0.05, global_batch=32.0)], cores=None)
    assert same.cells[1].efficiency == pytest.approx(0.5)
    assert any("efficiency compares the examples per second" in note for note in same.notes)
    unknown = analyse("demo", [replace(c.measured, global_batch=None) for c in same.cells], cores=2)
    assert any("efficiency is, as if" in note for note in unknown.notes)
