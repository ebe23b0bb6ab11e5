"""The check for plain English finds fragments and banned words, also where they are wrapped."""

from __future__ import annotations

import pytest
from tools.check_english import problems_of_source


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('def f():\n    """Of a node that is one."""\n', 2, "opens with a fragment: 'Of a node"),
        ('LIMIT = 3\n"""As above."""\n', 2, "opens with a fragment: 'As above.'"),
        ('"""Keras is mended."""\n', 1, "'mended' is banned"),
        (
            '"""A check: nothing stands\nin the way."""\n',
            1,
            "'nothing stands\\nin the way' is banned",
        ),
    ],
)
def test_a_fragment_or_a_banned_word_is_found(text: str, line: int, problem: str) -> None:
    ((name, number, found),) = problems_of_source("x.py", text)
    assert (name, number) == ("x.py", line)
    assert problem in found


@pytest.mark.parametrize("docstring", ["Return whether it runs.", "The state of a task.", "As-is."])
def test_a_full_statement_is_accepted(docstring: str) -> None:
    assert list(problems_of_source("x.py", f'"""{docstring}"""')) == []
