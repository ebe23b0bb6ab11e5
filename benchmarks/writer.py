"""A worker that writes N lines of 85 characters as fast as a pipe takes them, each numbered.

Its arguments: N. A line is its rank, its number, and dots, so that a reader can tell a line that
is lost, torn or mixed with another.
"""

import os
import sys

LINES_A_WRITE = 100


def main(lines: int) -> None:
    rank = int(os.environ.get("TFCLUSTER_TASK", os.environ.get("RANK", "")).rpartition(":")[2])
    for first in range(0, lines, LINES_A_WRITE):
        numbers = range(first, min(lines, first + LINES_A_WRITE))
        block = b"".join(b"%d %08d %s\n" % (rank, n, b"." * 73) for n in numbers)
        while block:
            block = block[os.write(1, block) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
