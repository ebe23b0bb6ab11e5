"""A check which task ports of the other nodes cannot be reached from this node right now.

    python reachability.py '{"attempt": 1, "others": [{"node": …, "task": …, "host": …}, …], …}'

It prints one line of JSON: `attempt`, and `cut`, a row (node, task, host, port, why) for each port
that did not answer. A refused connection is an answer: the host is up and its task has ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RETRY_S = 0.2
_SLACK_S = 0.5
"""The extra time for threads to end; a name look-up without an answer cannot be cancelled."""


def main(order: dict[str, Any]) -> None:
    report = {"attempt": order["attempt"], "cut": dial_all(order["others"], order["patience_s"])}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    os._exit(0)


def dial_all(others: list[dict[str, Any]], timeout_s: float) -> list[list[object]]:
    """Connect to all `others` at once; return the rows of those that did not answer.

    Takes at most `timeout_s` and `_SLACK_S`.
    """
    until = time.monotonic() + timeout_s
    reasons: list[str] = ["no answer"] * len(others)

    def dial_one(number: int) -> None:
        other = others[number]
        reasons[number] = dial(other["host"], other["port"], until)

    threads = [
        threading.Thread(target=dial_one, args=(number,), daemon=True)
        for number in range(len(others))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + _SLACK_S - time.monotonic()))
    named = ("node", "task", "host", "port")
    return [[*(o[n] for n in named), why] for o, why in zip(others, reasons) if why]


def dial(host: str, port: int, until: float) -> str:
    """Connect to `host` until it answers; return why it did not, "" if it did."""
    why = "no answer"
    while (remaining := until - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), remaining).close()
            return ""
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
        time.sleep(min(_RETRY_S, max(0.0, until - time.monotonic())))
    return why


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
