"""The table of a preflight report: nodes side by side, one after another, or only problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.documentation import unprinted

from tfcluster.backends.jobs import Obstacle, Outlook
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.preflight.preflight_report import Finding, PreflightReport
from tfcluster.ui.preflight_table import format_report

A = ProbeAnswer("10.0.0.1", "3.11.7", {"tensorflow": "2.15.1"}, ports=(2222,), peers=1)
B = replace(A, node="10.0.0.2", packages={"tensorflow": "2.16.1"})
ODD = Finding("10.0.0.2", "TensorFlow", "TensorFlow is 2.16.1 there", "all must have the same")
LATE = Finding("10.0.0.1", "clock", "its clock differs by +9 s", "set it by NTP", False)
REPORT = PreflightReport(("10.0.0.1", "10.0.0.2"), (A, B), (ODD, LATE))


def test_a_pipe_gets_values_with_marks_and_the_fixes_below() -> None:
    assert format_report(REPORT, width=None, colours=False) == "\n".join(
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


def test_the_interface_of_the_tasks_comes_first() -> None:
    found = [
        ("lo", "127.0.0.1", False),
        ("eth0", "10.0.0.1", False),
        ("eth0", "10.0.0.9", False),
        ("ib0", "10.20.0.1", True),
        *((f"veth{number}", f"172.17.0.{number}", False) for number in range(5)),
    ]
    report = PreflightReport(("10.0.0.1",), (replace(A, interfaces=found),), ())
    printed = str(format_report(report, width=None, colours=False))
    row = "interfaces  ib0 10.20.0.1 (tasks), eth0 10.0.0.1, veth0 172.17.0.0, veth1 172.17.0.1"
    assert f"{row} and 3 more" in printed


def test_the_page_about_hosts_shows_such_a_table() -> None:
    ours = replace(A, packages={"tensorflow": "2.21.0"}, peers=2)
    answers = (ours, replace(B, peers=2), replace(ours, node="10.0.0.3"))
    other = Finding(
        *("10.0.0.2", "TensorFlow", "TensorFlow: 2.15.1 on this node, 2.21.0 on the others"),
        "all nodes must have the same",
    )
    cut = [
        Finding(
            *(node, "peers", f"cannot connect to worker:2 ({peer}:2222): timed out"),
            "open that port between the two (firewall, security group), or write one that is open"
            " (runtime.ports: a range)",
        )
        for node, peer in (("10.0.0.1", "10.0.0.3"), ("10.0.0.3", "10.0.0.1"))
    ]
    nodes = tuple(answer.node for answer in answers)
    report = PreflightReport(nodes, answers, (other, *cut))
    printed = format_report(report, width=None, colours=False)
    assert unprinted("guides/hosts.md", "TensorFlow  2.21.0", printed) == []


def test_on_a_screen_problems_are_red_and_what_to_do_is_not_broken() -> None:
    fix = "tfcluster up --backend ssh " + "/a/long/path " * 8
    report = replace(REPORT, findings=(replace(ODD, fix=fix), LATE))
    shown = format_report(report, width=80, colours=True)
    assert "\x1b[31m2.16.1 ✗" in shown
    assert "\x1b[31m10.0.0.2: TensorFlow is 2.16.1 there" in shown
    assert f"  → {fix}".rstrip() in shown
    assert "\x1b[33mnote: 10.0.0.1: its clock differs by +9 s" in shown
    assert not shown.startswith("\n")
    assert "[31m" not in format_report(report, width=80, colours=False)


@pytest.mark.parametrize("width", [None, 30, 100], ids=["a pipe", "narrow", "wide"])
def test_text_from_a_host_is_sanitized(width: int | None) -> None:
    hostile = "\x1b]52;c;eA==\x07\x1b[8m\x1b[2J\x9b1A"
    answer = replace(A, python=f"3.11{hostile}")
    found = replace(ODD, what=f"odd{hostile}", fix=f"do{hostile}", node="10.0.0.1")
    clean = replace(ODD, what="odd�1A", fix="do�1A", node="10.0.0.1")
    shown, same = (
        PreflightReport(("10.0.0.1",), (seen,), (one, replace(one, check="clock", is_fatal=False)))
        for seen, one in ((answer, found), (replace(A, python="3.11�1A"), clean))
    )
    as_shown = {"width": width, "colours": True}
    assert format_report(shown, **as_shown) == format_report(same, **as_shown)  # type: ignore[arg-type]


def test_on_a_narrow_screen_nodes_are_listed_one_after_another() -> None:
    lines = format_report(REPORT, width=30, colours=True).splitlines()
    assert lines[0] == "10.0.0.1"
    assert lines[1].split() == ["Python", "3.11.7"]
    assert "10.0.0.2" in lines
    assert max(len(line) for line in lines[: lines.index("")]) <= 30


def test_only_nodes_with_findings_are_shown_if_there_are_many() -> None:
    seen = tuple(replace(A, node=f"n{number}") for number in range(64))
    report = PreflightReport(
        tuple(answer.node for answer in seen), seen, (replace(ODD, node="n7"),)
    )
    shown = format_report(report, width=None, colours=False)
    assert shown.splitlines()[0].split() == ["n7"]
    assert "63 other nodes: OK" in shown


def test_an_unreachable_node_has_its_error_in_its_column_and_this_machine_below() -> None:
    gone = Finding("10.0.0.2", "reach", "10.0.0.2 cannot be reached: no route", "see ssh -v")
    local = Finding("local", "spec", "there is no script at /a", "job.script is relative")
    report = PreflightReport(REPORT.nodes, (A,), (gone, local))
    assert "reach                       ✗" in format_report(report, width=None, colours=False)
    shown = format_report(report, width=100, colours=False)
    assert "10.0.0.2 cannot be reached" in shown
    assert "local: there is no script at /a\n  → job.script is relative" in shown


@pytest.mark.parametrize("width", [None, 80])
def test_a_schedulers_own_checks_are_shown_and_a_fix_only_where_there_is_one(
    width: int | None,
) -> None:
    obstacles = (
        Obstacle("permissions", "this user may not create pods", "a Role gives them"),
        Obstacle("volumes", "the claim data has no volume yet", "", is_fatal=False),
    )
    report = PreflightReport.of_job("kubernetes", Outlook(obstacles))
    assert report.with_nodes(report).nodes == ("kubernetes",)  # one column
    shown = format_report(report, width=width, colours=False)
    assert "permissions" in shown
    assert "may not create pods" in shown
    assert "the claim data has no volume yet" in shown
    assert [line.split() for line in shown.split("\n") if "→" in line] == [
        ["→", "a", "Role", "gives", "them"]
    ]
