"""Tables of cases as text, for cases that are lines themselves."""

from __future__ import annotations


def rows(table: str) -> list[tuple[str, str]]:
    """Return each line at the margin of `table` with the line below it, which is indented."""
    lines = table.strip("\n").split("\n")
    assert all(line[:4] != "    " for line in lines[::2])
    assert all(line[:4] == "    " for line in lines[1::2])
    return [(case, said.strip()) for case, said in zip(lines[::2], lines[1::2], strict=True)]
