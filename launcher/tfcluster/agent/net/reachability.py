"""Tells which of the other nodes' task ports cannot be reached from this node right now.

    python reachability.py '{"attempt": 1, "others": [{"node": …, "task": …, "host": …, "port": …}, …], …}'

Prints one line of JSON: `attempt`, and `cut`, a row (node, task, host, port, why) for each that
did not answer. A refusal is an answer: the host is there, and its task has ended.
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
"""For a name that no server resolves: its look-up cannot be called off, only left behind."""


def main(order: dict[str, Any]) -> None:
    report = {"attempt": order["attempt"], "cut": dial_all(order["others"], order["patience_s"])}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    os._exit(0)


def dial_all(others: list[dict[str, Any]], patience_s: float) -> list[list[object]]:
    """All at once; at most `patience_s`, and a little."""
    until = time.monotonic() + patience_s
    whys: list[str] = ["no answer"] * len(others)

    def dial(number: int) -> None:
        other = others[number]
        whys[number] = call(other["host"], other["port"], until)

    threads = [
        threading.Thread(target=dial, args=(number,), daemon=True) for number in range(len(others))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + _SLACK_S - time.monotonic()))
    named = ("node", "task", "host", "port")
    return [[*(o[n] for n in named), why] for o, why in zip(others, whys) if why]


def call(host: str, port: int, until: float) -> str:
    """Why nothing answers at `host` until the moment `until`; empty where something does."""
    why = "no answer"
    while (left := until - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), left).close()
            return ""
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
        time.sleep(min(_RETRY_S, max(0.0, until - time.monotonic())))
    return why


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
