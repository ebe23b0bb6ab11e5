"""`docs/upstream/apply.py` finds the functions of a trainer and leaves everything else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.parity import table

UPSTREAM = Path(__file__).parents[2] / "docs/upstream"
TRAINER = '''
def reduce_per_replica(values, strategy, reduction):
    """Reduce."""
    if reduction == "auto":
        reduction = "mean"

    def inner(value):
        if is_multi_worker(strategy):
            if reduction == "concat":
                return gathered(value)
            elif reduction == "mean":
                return strategy.reduce("MEAN", value, axis=0)
        return value

    return inner(values)


class AnyName:
    def before(self):
        pass

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        return "fails"

    def after(self):
        pass
'''


def test_the_functions_are_found_in_any_class_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keras_tensorflow/src/anything.py"
    file.parent.mkdir(parents=True)
    file.write_text(TRAINER)
    done = subprocess.run([sys.executable, UPSTREAM / "apply.py", tmp_path], capture_output=True)
    assert done.returncode == 0, done.stderr
    tree = ast.parse(file.read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert names == ["_first_replica_batch", "_multi_worker_mean", "reduce_per_replica", "AnyName"]
    source = ast.unparse(tree)
    assert "_multi_worker_mean(values, strategy)" in source
    assert "gathered(value)" in source, "the other branches stay"
    for gone in ("axis=0", "'fails'"):
        assert gone not in source
    assert file.with_name("multi_worker_test.py").exists()


@pytest.mark.parametrize(
    ("source", "why"),
    [("x = 1\n", "no file in"), (TRAINER.replace("MEAN", "SUM"), "was Keras fixed?")],
)
def test_a_keras_without_these_functions_is_left_as_it_is(
    tmp_path: Path, source: str, why: str
) -> None:
    file = tmp_path / "trainer.py"
    file.write_text(source)
    done = subprocess.run(
        [sys.executable, UPSTREAM / "apply.py", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert why in done.stderr
    assert file.read_text() == source


def test_the_pull_request_has_the_numbers_of_the_page_on_parity() -> None:
    rows = re.findall(
        r"^\| (SGD|Adam) \| (\d) \| (.*) \|$", (UPSTREAM / "pull-request.md").read_text(), re.M
    )
    measured = table.read(table.PAGE.read_text())
    assert len(rows) == 6
    for optimizer, workers, cells in rows:
        *numbers_of_it, top_3, weights = measured["Keras 3", optimizer, "full", int(workers)]
        assert [float(cell) for cell in cells.split(" | ")] == [*numbers_of_it, weights]
        assert top_3 > numbers_of_it[-1]
