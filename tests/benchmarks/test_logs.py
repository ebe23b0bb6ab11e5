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


def test_lines_that_are_lost_torn_or_mixed_are_counted() -> None:
    first, second, *others = _merged("")
    assert _found([second, *others]) == (1, 0), "one is missing"
    assert _found([first[:20], b"\n", first[20:], second, *others]) == (1, 2), "one is cut in two"
    assert _found([first[:-1], second, *others]) == (2, 1), "two are joined"
    assert _found([first, second, *others, first]) == (0, 1), "one comes twice"
    first, *others = _merged("worker:{} │ ")
    wrong = first.replace(b"worker:0", b"worker:1")
    assert _found([wrong, *others]) == (1, 1), "one has the name of another worker"
    honcho = b"09:45:03 system | w0.1 started (pid=7)\n"
    assert _found([*_merged(""), honcho]) == (0, 0), "it is a line of honcho itself"
