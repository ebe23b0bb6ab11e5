"""Only an import that surely happens is evidence that a job needs a module."""

from __future__ import annotations

import pytest

from tfcluster.plan.imports import certain_imports


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
def test_certain_imports(source: str, expected: set[str]) -> None:
    assert certain_imports(source) == expected
