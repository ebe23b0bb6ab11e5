"""Binds free ports in a loop, holds each for a while, and closes the oldest, until it is killed.

Prints the number of ports bound so far, every hundred rounds.
"""

from __future__ import annotations

import collections
import socket
import time

HELD, A_ROUND, PAUSE_S = 600, 20, 0.01


def main() -> None:
    held: collections.deque[socket.socket] = collections.deque()
    count = 0
    while True:
        for _ in range(A_ROUND):
            taken = socket.socket()
            taken.bind(("0.0.0.0", 0))
            held.append(taken)
            count += 1
            if len(held) > HELD:
                held.popleft().close()
        if count % (100 * A_ROUND) == 0:
            print(count, flush=True)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
