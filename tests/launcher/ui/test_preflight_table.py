"""How a look at the nodes is shown: side by side, one under the other, or only what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.preflight.rules import Finding, PreflightReport
from tfcluster.ui.preflight_table import format_report

A = ProbeAnswer("10.0.0.1", "3.11.7", {"tensorflow": "2.15.1"}, ports=(2222,), peers=1)
B = replace(A, node="10.0.0.2", packages={"tensorflow": "2.16.1"})
ODD = Finding("10.0.0.2", "TensorFlow", "TensorFlow is 2.16.1 there", "all must have the same")
LATE = Finding("10.0.0.1", "clock", "its clock differs by +9 s", "set it by NTP", False)
LOOK = PreflightReport(("10.0.0.1", "10.0.0.2"), (A, B), (ODD, LATE))


def test_a_pipe_gets_values_with_marks_and_below_them_what_to_do() -> None:
    assert format_report(LOOK, width=None, colours=False) == "\n".join(
        [
            "            10.0.0.1        10.0.0.2",
            "Python      3.11.7          3.11.7",
            "TensorFlow  2.15.1          2.16.1 ✗",
            "GPUs        none            none",
            "ports       2222            2222",
            "peers       1 of 1 reached  1 of 1 reached",
            "clock       !",
            "",
            "10.0.0.2: TensorFlow is 2.16.1 there",
            "  → all must have the same",
            "note: 10.0.0.1: its clock differs by +9 s",
            "  → set it by NTP",
            "",
            "1 problem to fix before a start",
        ]
    )


def test_on_a_screen_the_red_cell_says_what_to_do() -> None:
    shown = format_report(LOOK, width=100, colours=True)
    assert "\x1b[31mTensorFlow is 2.16.1 there" in shown
    assert "\x1b[31m→ all must have the same" in shown
    assert "\x1b[33mits clock differs by +9 s" in shown
    assert not shown.startswith("\n")


def test_without_colours_there_are_none() -> None:
    shown = format_report(LOOK, width=100, colours=False)
    assert "[31m" not in shown
    assert "→ all must have the same" in shown


@pytest.mark.parametrize("width", [None, 30, 100], ids=["a pipe", "narrow", "wide"])
def test_what_a_host_says_can_neither_colour_nor_move_anything(width: int | None) -> None:
    said = "\x1b]52;c;eA==\x07\x1b[8m\x1b[2J\x9b1A"
    seen = replace(A, python=f"3.11{said}")
    found = replace(ODD, what=f"odd{said}", fix=f"do{said}", node="10.0.0.1")
    clean = replace(ODD, what="odd�1A", fix="do�1A", node="10.0.0.1")
    look = PreflightReport(
        ("10.0.0.1",), (seen,), (found, replace(found, check="clock", is_fatal=False))
    )
    same = PreflightReport(
        ("10.0.0.1",),
        (replace(A, python="3.11�1A"),),
        (clean, replace(clean, check="clock", is_fatal=False)),
    )
    assert format_report(look, width=width, colours=True) == format_report(
        same, width=width, colours=True
    )


def test_on_a_small_screen_the_nodes_stand_one_under_the_other() -> None:
    lines = format_report(LOOK, width=30, colours=True).splitlines()
    assert lines[0] == "10.0.0.1"
    assert lines[1].split() == ["Python", "3.11.7"]
    assert "10.0.0.2" in lines
    assert max(len(line) for line in lines[: lines.index("")]) <= 30


def test_of_many_nodes_only_those_with_something_to_fix_are_shown() -> None:
    seen = tuple(replace(A, node=f"n{number}") for number in range(64))
    look = PreflightReport(tuple(one.node for one in seen), seen, (replace(ODD, node="n7"),))
    shown = format_report(look, width=None, colours=False)
    assert shown.splitlines()[0].split() == ["n7"]
    assert "63 other nodes: OK" in shown


def test_a_node_that_could_not_be_reached_has_its_words_in_its_column() -> None:
    gone = Finding("10.0.0.2", "reach", "10.0.0.2 cannot be reached: no route", "see ssh -v")
    look = PreflightReport(LOOK.nodes, (A,), (gone,))
    assert "reach                       ✗" in format_report(look, width=None, colours=False)
    assert "10.0.0.2 cannot be reached" in format_report(look, width=100, colours=False)


def test_what_this_machine_lacks_is_told_below_where_it_is_no_node() -> None:
    here = Finding("local", "spec", "there is no script at /a", "job.script is relative")
    shown = format_report(PreflightReport(LOOK.nodes, (A, B), (here,)), width=100, colours=False)
    assert "local: there is no script at /a\n  → job.script is relative" in shown


def test_a_sound_look_says_so() -> None:
    shown = format_report(PreflightReport(LOOK.nodes, (A, A), ()), width=None, colours=False)
    assert shown.endswith("All checks passed")
