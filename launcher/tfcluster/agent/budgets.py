"""The limits on what a task, a node or a connection may send, list or have stored.

No working job reaches one of them. The first excess is reported, once; docs/limits.md lists the
limits for users. The agent enforces those of tasks and connections, the coordinator those of nodes:
a node that sends more than its agent would allow does not run our agent, and is refused.
"""

from __future__ import annotations

# -- one report of a task -------------------------------------------------------------------

REPORT_TEXT = 16 << 10
"""Characters of a path or an exception's message."""
REPORT_TRACEBACK = 64 << 10
REPORT_NAMES = 100
"""Metrics, or hyperparameters."""
REPORT_NAME = 200
"""Characters of a name, or of a value that is no number."""
NOTE_TEXT = 2_000

# -- all reports of a task ------------------------------------------------------------------

REPORTS_AT_ONCE, REPORTS_PER_S = 500, 50.0
"""What a task sends beyond is dropped."""
REPORT_BYTES_AT_ONCE, REPORT_BYTES_PER_S = 2 << 20, 256e3
RESERVE_AT_ONCE, RESERVE_PER_S = 100, 5.0
"""Beyond that, of reports on which it depends how the run goes on: an exception, a checkpoint."""
NOTES = 50
"""Of each attempt of a task that the user is shown and the run keeps."""
TRIALS = 5_000
"""Of a search that the run's state lists."""
TOLD_CHECKPOINTS = 10_000
"""Paths whose steps are remembered."""

# -- messages of a node ---------------------------------------------------------------------

BACKLOG = 10_000
"""Messages that an agent keeps for a coordinator it cannot reach; then it drops reports."""
MESSAGES_AT_ONCE, MESSAGES_PER_S = 20_000, 100.0
"""Of a node, and as many per second for each task of it."""
MESSAGE_BYTES = 4 << 20
"""Of a control message to the coordinator."""
MESSAGE_TEXT = 16 << 10
"""Characters of a text in it: a reason, an error, a name."""
MESSAGE_LIST = 100_000
"""Items of a list in it."""

# -- connections to an agent ----------------------------------------------------------------

STRANGERS = 8
"""Connections that have not said who they are; for another one the oldest is closed."""
HELLO_S = 10.0
"""How long one of them may take."""
HELLO_BYTES = 1 << 20
"""It names all logs of the run."""

# -- what a run keeps -----------------------------------------------------------------------

WARNINGS = 500
CHECKPOINTS = 500
"""Gathered ones; beyond that only newer ones of the same names."""
UNWRITTEN_EVENTS = 16 << 20
"""Bytes of events that wait for a full disk; beyond that progress is not among them."""

# -- files of a node ------------------------------------------------------------------------

LISTED_CHECKPOINTS = 50_000
"""Files and folders below a folder that checkpoints, or TensorBoard's curves, are gathered from."""
LISTED_AT_MOST = 200_000
"""The same of a working directory that outputs are gathered from."""
LISTED_BYTES = 32 << 20
"""Of all names in one listing."""
FILE_BYTES_AHEAD = 16 << 20
"""What a node may have sent of a file that is not written yet; it stops at half of that."""


def too_many_files(folder: str, most: int) -> str:
    return (
        f"{folder} holds more than {most:,} files and folders (or their names are very long):"
        " nothing is gathered from it while it does"
    )


class Allowance:
    """A bucket that holds `burst` and gets `per_s` each second; one spending may exceed it."""

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._level, self._at = burst, now

    def spend(self, amount: float, now: float) -> None:
        self._fill(now)
        self._level -= amount

    def wait_s(self, now: float) -> float:
        """Seconds until something may be spent again; 0: now."""
        self._fill(now)
        return max(0.0, -self._level / self._per_s)

    def _fill(self, now: float) -> None:
        self._level = min(self._burst, self._level + self._per_s * max(0.0, now - self._at))
        self._at = max(now, self._at)
