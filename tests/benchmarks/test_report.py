"""The benchmark report turns CSV files into a page and keeps the page's prose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.catalog import METRICS
from benchmarks.chart import Bar, chart, scale
from benchmarks.figures import spread
from benchmarks.harness import Quantity
from benchmarks.report import BEGIN, END, report
from benchmarks.results import read, signed, write
from tests.benchmarks.observed import observed

PROSE = f"# Benchmarks\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "benchmarks.md").write_text(PROSE)
    return docs


def _measured(folder: Path, **arms: list[float]) -> Path:
    values = [value for arm, seen in arms.items() for value in observed(arm, seen)]
    path = folder / "start.csv"
    write(path, signed(values, METRICS["start"].make(), more="--runs 3 --seed 5"))
    return path


def test_written_values_are_read_back(tmp_path: Path) -> None:
    path = _measured(tmp_path, tfcluster=[0.25, 1 / 3], shell=[1e-9])
    values = read(path)
    assert [value.value for value in values] == [0.25, 0.333333, 1e-9]
    assert [value.run for value in values] == [1, 2, 1]
    assert values[0].command == "tfcluster up bench.json"
    assert "Python" in values[0].versions
    assert values[0].commit
    header = path.read_text().splitlines()[0]
    assert header == "metric,arm,quantity,run,value,unit,commit,versions,command"


def test_a_report_shows_figures_bars_and_commands(tmp_path: Path, docs: Path) -> None:
    report([_measured(tmp_path, tfcluster=[1, 2, 3], torchrun=[8, 8, 8])], docs)
    page = (docs / "benchmarks.md").read_text()
    assert page.startswith(f"# Benchmarks\n\nBefore.\n\n{BEGIN}\n")
    assert page.endswith(f"{END}\n\nAfter.\n")
    assert "old" not in page
    assert "| tfcluster | 3 | **2** (1.5–2.5; 1–3) |" in page
    assert "| torchrun | 3 | 8 |" in page
    assert "| `start`: tfcluster : torchrun | **0.25 ×** |" in page
    assert "≤ 0.35: reached | ≤ 0.25: reached |" in page
    assert "$ python -m benchmarks start --runs 3 --seed 5" in page
    assert "torchrun --standalone --no-python" in page
    assert "honcho" not in page.partition("## Start")[2]


def test_rounds_of_two_sessions_are_shown_with_both_commands(tmp_path: Path, docs: Path) -> None:
    once = read(_measured(tmp_path, tfcluster=[1, 2]))
    twice = [
        replace(value, run=value.run + 2, commit="def", versions="Python; --runs 2 --seed 6")
        for value in once
    ]
    both = [*(replace(value, commit="abc") for value in once), *twice]
    write(tmp_path / "start.csv", both)
    report([tmp_path / "start.csv"], docs)
    page = (docs / "benchmarks.md").read_text()
    assert "start --runs 3 --seed 5\n$ python -m benchmarks start --runs 2 --seed 6\n" in page
    assert "Commit abc, def; " in page


def test_repeating_a_report_changes_nothing(tmp_path: Path, docs: Path) -> None:
    path = _measured(tmp_path, tfcluster=[1, 2, 3], shell=[1, 1, 2])
    report([path], docs)
    first = (docs / "benchmarks.md").read_text()
    report([docs / "benchmarks" / "start.csv"], docs)
    assert (docs / "benchmarks.md").read_text() == first


def test_a_page_without_the_markers_gets_them_at_its_end(tmp_path: Path, docs: Path) -> None:
    (docs / "benchmarks.md").write_text("# Benchmarks\n")
    report([_measured(tmp_path, tfcluster=[1])], docs)
    page = (docs / "benchmarks.md").read_text()
    assert page.startswith(f"# Benchmarks\n\n{BEGIN}\n")
    assert page.endswith(f"{END}\n")


def test_bar_lengths_are_proportional_to_their_values() -> None:
    bars = [
        Bar("ours <here>", spread([2.0, 2.0], Quantity("s")), is_ours=True),
        Bar("theirs", spread([8.0, 8.0], Quantity("s")), is_ours=False),
    ]
    picture = ElementTree.fromstring(chart("a & b", "s", bars))
    rects = picture.findall("{http://www.w3.org/2000/svg}rect")
    _, ours, theirs = (float(rect.attrib["width"]) for rect in rects)
    assert theirs / ours == pytest.approx(4, rel=1e-3)
    texts = [text.text for text in picture.findall("{http://www.w3.org/2000/svg}text")]
    assert {"ours <here>", "a & b, s", "2", "8"} <= set(texts)


@pytest.mark.parametrize("most", [0.0, 0.0004, 0.9, 1.0, 3.3, 7.1, 99.0, 12345.0])
def test_an_axis_has_a_few_round_ticks(most: float) -> None:
    step = scale(most)
    assert f"{step:.0e}"[0] in "125"
    assert most / step <= 5
    assert most == 0 or most / step >= 1
