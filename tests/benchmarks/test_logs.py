"""The logs benchmark counts lines that a launcher lost, tore or gave to the wrong worker."""

from __future__ import annotations

import pytest
from benchmarks.logs import fidelity

LINES = 3


def _line(rank: int, number: int) -> bytes:
    return b"%d %08d %s\n" % (rank, number, b"." * 73)


def _merged(prefix: str) -> list[bytes]:
    return [
        prefix.format(rank).encode() + _line(rank, number)
        for number in range(LINES)
        for rank in range(2)
    ]


def _found(lines: list[bytes]) -> tuple[int, int]:
    return fidelity(b"".join(lines), LINES, workers=2)


@pytest.mark.parametrize("prefix", ["", "worker:{} │ ", "[default{}]:", "09:45:03 w{}.1 | "])
def test_whole_lines_of_each_launcher_are_recognized(prefix: str) -> None:
    assert _found(_merged(prefix)) == (0, 0)


def test_a_missing_line_is_lost() -> None:
    assert _found(_merged("")[1:]) == (1, 0)


def test_a_line_cut_in_two_is_lost_and_its_halves_are_torn() -> None:
    first, *others = _merged("")
    assert _found([first[:20], b"\n", first[20:], *others]) == (1, 2)


def test_two_joined_lines_are_lost_and_torn() -> None:
    first, second, *others = _merged("")
    assert _found([first[:-1], second, *others]) == (2, 1)


def test_a_line_under_another_worker_s_name_is_lost_and_mixed() -> None:
    first, *others = _merged("worker:{} │ ")
    assert _found([first.replace(b"worker:0", b"worker:1"), *others]) == (1, 1)


def test_a_duplicate_line_counts_as_mixed_but_not_as_lost() -> None:
    lines = _merged("")
    assert _found([*lines, lines[0]]) == (0, 1)


def test_lines_of_honcho_itself_are_not_counted() -> None:
    assert _found([*_merged(""), b"09:45:03 system | w0.1 started (pid=7)\n"]) == (0, 0)
