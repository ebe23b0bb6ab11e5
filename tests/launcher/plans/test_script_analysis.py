"""The static reading of a script finds certain imports, variables that it sets, and searches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfcluster.plans.script_analysis import Code, Notebook


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tensorflow as tf", {"tensorflow"}),
        ("import os, tensorflow.keras", {"os", "tensorflow.keras"}),
        ("from tensorflow import keras", {"tensorflow"}),
        ("from . import mnist", {"."}),
        ("from .data import load", {".data"}),
        ("def main():\n    import tensorflow", {"tensorflow"}),
        ("if __name__ == '__main__':\n    import tensorflow", {"tensorflow"}),
        ("try:\n    import tensorflow\nexcept ImportError:\n    tensorflow = None", set()),
        ("if flag:\n    import tensorflow", set()),
        ("text = 'import tensorflow'", set()),
        ("print 'python 2'", set()),
        ("\0", set()),
    ],
)
def test_only_imports_that_certainly_happen_are_found(source: str, expected: set[str]) -> None:
    assert Code.read(source).imports == expected


@pytest.mark.parametrize("summands", [700, 100_000])
def test_an_expression_too_deep_to_be_read_raises_no_error(summands: int) -> None:
    deep = "import tensorflow\nx = " + "+".join(["1"] * summands)
    assert Code.read(deep).imports <= {"tensorflow"}


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("import tensorflow as tf\nmodel = tf.keras.Sequential()", {"keras"}),
        ("from tensorflow import keras", {"keras"}),
        ("import tensorflow.keras.layers", {"keras"}),
        ("def main(tf):\n    tf.estimator.Estimator()", {"estimator"}),
        ("import tensorflow as tf\ntf.constant(1)", set()),
    ],
)
def test_the_parts_of_tensorflow_that_are_used_are_found(source: str, parts: set[str]) -> None:
    assert Code.read(source).parts == parts


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import os\nos.environ['A'] = '1'", {"A"}),
        ("from os import environ\nenviron['A'] = '1'", {"A"}),
        ("def f():\n    os.environ.setdefault('A', '1')", {"A"}),
        ("os.environ.update({'A': '1'}, B='2')", {"A", "B"}),
        ("os.putenv('A', '1')", {"A"}),
        ("x = os.environ['A']; settings['B'] = 1; settings.update({'C': 1})", set()),
        ("os.environ |= {'A': '1'}", {"A"}),
        ("os.environ.update(dict(A='1'))", {"A"}),
        ("del os.environ['A']", {"A"}),
        ("os.environ.pop('A', None)", {"A"}),
        ("os.environ[name] = '1'", {"?"}),
        ("os.environ.update(settings)", {"?"}),
        ("os.environ.update({**settings, 'A': '1'})", {"?", "A"}),
    ],
)
def test_the_environment_variables_that_a_script_sets_are_found(
    source: str, names: set[str]
) -> None:
    assert Code.read(source).sets == names


@pytest.mark.parametrize(
    ("source", "searches"),
    [
        ("import keras_tuner as kt\nkt.RandomSearch(build).search(x, y)", True),
        ("from kerastuner.tuners import Hyperband\ntuner = Hyperband(b)\ntuner.search(x, y)", True),
        (
            "try:\n    import keras_tuner\nexcept ImportError: pass\nt.search(x, epochs=2)",
            True,
        ),
        ("import keras_tuner as kt\nvalues = kt.HyperParameters()", False),
        ("import keras_tuner, re\nre.search('x', text)", False),
        ("import keras_tuner\nP = re.compile('x')\nP.search('a', 1)", False),
        ("import keras_tuner\nself.p: re.Pattern = re.compile('x')\nself.p.search('a', 1)", False),
        ("import keras_tuner\nif p := re.compile('x'): p.search('a', 1)", False),
        ("import keras_tuner, regex\nregex.compile('x').search('a', 0, 9)", False),
        ("import keras_tuner\nindex.search('a')", False),
        ("import keras_tuner\nindex.search('a', limit=5)", False),
        ("index.search(query)", False),
    ],
)
def test_a_search_needs_a_call_as_well_as_an_import(source: str, searches: bool) -> None:
    assert Code.read(source).searches is searches


@pytest.mark.parametrize(
    ("source", "backends"),
    [
        ("os.environ['KERAS_BACKEND'] = 'jax'", ("jax", "")),
        ("environ.setdefault('KERAS_BACKEND', 'torch')", ("", "torch")),
        ("os.environ['KERAS_BACKEND'] = sys.argv[1]", ("", "")),
        ("settings['KERAS_BACKEND'] = 'jax'", ("", "")),
    ],
)
def test_the_backend_of_keras_is_a_constant_that_the_script_sets(
    source: str, backends: tuple[str, str]
) -> None:
    code = Code.read(source) | Code()
    assert (code.keras_backend, code.default_keras_backend) == backends


def test_a_search_may_span_several_files() -> None:
    model, main = Code.read("import keras_tuner"), Code.read("make_tuner().search(x=x)")
    assert (model | main).searches


def notebook(*cells: Any, **metadata: Any) -> str:
    listed = [{"cell_type": "code", "source": source} for source in cells]
    return json.dumps({"cells": listed, "metadata": metadata})


def test_the_code_of_a_notebook_is_that_of_its_cells() -> None:
    text = notebook(
        "%pip install x\nimport tensorflow as tf",
        ["if colab:\n", "    !ls\n", "os.environ['A'] = '1'"],
        "broken = (",
        "x = (a\n     % b)\nimport keras",
    )
    code = Code.of_file("train.ipynb", text)
    assert code.imports == {"tensorflow", "keras"}
    assert code.sets == {"A"}
    assert Code.of_file("train.py", text) == Code.read(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (notebook("x"), ""),
        (notebook("x", kernelspec={"language": "python"}), ""),
        (notebook("x", kernelspec={"language": "R"}), "is a notebook in R, not in Python"),
        (notebook(" "), "has no code cell"),
        ("import os", "is not a notebook as Jupyter saves it (nbformat 4)"),
        ('{"worksheets": []}', "is not a notebook as Jupyter saves it (nbformat 4)"),
        ('{"cells": [1], "metadata": []}', "is not a notebook as Jupyter saves it (nbformat 4)"),
    ],
)
def test_what_cannot_run_as_a_notebook_is_named(text: str, problem: str) -> None:
    assert Notebook.read(text).problem == problem
    assert bool(Code.of_file("a.ipynb", text).imports) is False
