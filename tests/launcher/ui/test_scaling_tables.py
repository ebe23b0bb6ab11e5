"""A scaling study as text fits the screen, and its times have three digits."""

from __future__ import annotations

from itertools import product

import pytest

from tfcluster.scaling.study import PARTS, Measured, analyse
from tfcluster.ui.formats import format_ms
from tfcluster.ui.render import part_lines
from tfcluster.ui.scaling_tables import cell_grid, describe_study, part_grid, study_parts


@pytest.mark.parametrize("width", [30, 60, 200])
def test_the_text_fits_the_screen(width: int) -> None:
    alone = Measured(1, None, None, (0.05, 0.051), 4_000_000, 8.0, 0.2)
    cells = [
        Measured(n, "RING", rate, (0.06 + n * 3e7 / rate, 0.1), 4_000_000, 8.0 * n, 0.3)
        for n, rate in product((2, 3), (1e8, 1e9))
    ]
    study = analyse("demo", [alone, *cells], backend="simulated", cores=2, predict=(8,))
    lines = [line for part in study_parts(study) for line in part_lines(part, width)]
    assert max(map(len, lines)) <= width
    assert "100 Mbit/s" in " ".join(lines)


def test_both_quartiles_have_their_unit() -> None:
    study = analyse(
        "demo",
        [Measured(1, None, None, (0.8, 1.2), 4_000_000, 8.0, 0.2)],
        backend="simulated",
        cores=2,
    )
    grid = cell_grid(study)
    assert grid.rows[0][grid.headers.index("quartiles")] == "900 ms – 1.10 s"


def test_the_parts_of_a_step_are_shown_or_said_to_be_unknown() -> None:
    parts = {"compute": 0.04, "waiting": 0.002, "transfer": 0.008}
    alone = Measured(1, None, None, (0.05,), None, 8.0, 0.2, nodes=("10.0.0.1",))
    cells = [alone, Measured(2, None, None, (0.06,), None, 16.0, 0.2, parts, ("10.0.0.1", "gpu2"))]
    study = analyse("demo", cells, backend="ssh", cores=None)
    speeds, parts_of_cells = cell_grid(study), part_grid(study)
    speed = dict(zip(speeds.headers, speeds.rows[1], strict=True))
    assert (speed["examples/s"], speed["efficiency"]) == ("266.7", "83%")
    assert not {"rate", "collective", "of ring", "fit"} & speed.keys()
    unknown, known = (
        dict(zip(parts_of_cells.headers, row, strict=True)) for row in parts_of_cells.rows
    )
    assert unknown == {"workers": "1", **dict.fromkeys(("mean step", *PARTS), "…")}
    assert known["mean step"] == "50 ms"
    assert (known["compute"], known["waiting"], known["other"]) == ("40 ms", "2 ms", "0 ms")
    assert max(speeds.width, parts_of_cells.width) <= 80
    assert describe_study(study, ["tfcluster"])["place"] == "ssh: 10.0.0.1, gpu2"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.00342, "3.42 ms"),
        (0.182, "182 ms"),
        (1.25, "1.25 s"),
        (12.0, "12 s"),
        (0.99996, "1.00 s"),
    ],
)
def test_a_time_has_three_digits(seconds: float, shown: str) -> None:
    assert format_ms(seconds) == shown
