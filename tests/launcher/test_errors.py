"""An error is safe to print, wherever its words come from."""

from __future__ import annotations

from tfcluster.errors import NodeLostError, Problem, SetupError, SpecError

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"


def test_an_error_that_python_prints_has_no_control_characters() -> None:
    """Python prints what a program does not catch, not the command line."""
    error = NodeLostError(f"n1 said: a{CLIPBOARD}b\x1b[2J\x08\n\tc", fix="ssh \x9bn1")

    assert str(error) == "n1 said: ab␈\n\tc\n  → ssh �n1"
    assert (error.message, error.fix) == ("n1 said: ab␈\n\tc", "ssh �n1")
    assert error.args == (error.message,)


def test_errors_that_are_made_of_others_have_none_either() -> None:
    error = SpecError([Problem("s.json:1:1", "what is \x1b[2J\x07?")])
    assert str(error) == "s.json:1:1: what is ␇?"
    assert repr(SetupError("\x1b[31m")) == "SetupError('')"
