"""A stub worker: writes N lines of 85 characters as fast as a pipe takes them."""

from __future__ import annotations

import os
import sys

LINES_A_WRITE = 100


def main(lines: int) -> None:
    for first in range(0, lines, LINES_A_WRITE):
        numbers = range(first, min(lines, first + LINES_A_WRITE))
        block = b"".join(b"line %08d %s\n" % (n, b"." * 71) for n in numbers)
        while block:
            block = block[os.write(1, block) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
