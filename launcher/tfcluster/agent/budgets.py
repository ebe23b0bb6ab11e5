"""The limits on what a task, a node or a connection may send, list or have stored.

No working job reaches one of them. The first excess is reported, once; docs/guides/limits.md lists
the limits for users. The agent enforces those of tasks and connections, the coordinator those of
nodes: a node that sends more than its agent would allow does not run our agent, and is refused.
"""

from __future__ import annotations

# -- one report of a task -------------------------------------------------------------------

REPORT_TEXT = 16 << 10
"""The characters of a path or an exception's message."""
REPORT_TRACEBACK = 64 << 10
REPORT_NAMES = 100
"""The number of metrics, or of hyperparameters."""
REPORT_NAME = 200
"""The characters of a name, or of a value that is not a number."""
NOTE_TEXT = 2_000

# -- all reports of a task ------------------------------------------------------------------

REPORTS_AT_ONCE, REPORTS_PER_S = 500, 50.0
"""The number of reports; more are dropped."""
REPORT_BYTES_AT_ONCE, REPORT_BYTES_PER_S = 2 << 20, 256e3
RESERVE_AT_ONCE, RESERVE_PER_S = 100, 5.0
"""The extra reports allowed if the run depends on them: an exception, a checkpoint."""
NOTES = 50
"""The notes per attempt of a task that the user sees and the run keeps."""
TRIALS = 5_000
"""The trials of a search that the run's state lists."""
REPORTED_CHECKPOINTS = 10_000
"""The number of paths whose steps are remembered."""
WRITTEN_FILES = 100_000
"""The files that tasks report as written; further ones are not compared."""

# -- messages of a node ---------------------------------------------------------------------

BACKLOG = 10_000
"""The messages that an agent keeps for an unreachable coordinator; then it drops reports."""
MESSAGES_AT_ONCE, MESSAGES_PER_S = 20_000, 100.0
"""The messages of a node; the rate is per task."""
MESSAGE_BYTES = 4 << 20
"""The size of a control message to the coordinator."""
MESSAGE_TEXT = 16 << 10
"""The characters of one of its strings: a reason, an error, a name."""
MESSAGE_LIST = 100_000
"""The items of one of its lists."""

CHILD_HELLOS = 64
"""The connections of tasks' children that have not said hello; one more closes the oldest."""

# -- commands beside tasks ------------------------------------------------------------------

EXEC_COMMANDS = 16
"""The commands of `tfcluster exec` on a node at a time; further ones are refused."""
EXEC_BYTES_AHEAD = 256 << 10
"""The bytes of one of their streams that may be sent and not yet written."""

# -- connections to an agent ----------------------------------------------------------------

PENDING_CONNECTIONS = 8
"""The connections without a hello; one more closes the oldest."""
HELLO_S = 10.0
HELLO_BYTES = 1 << 20
"""The size of a hello, which names all logs of the run."""

# -- what a run keeps -----------------------------------------------------------------------

WARNINGS = 500
CHECKPOINTS = 500
"""The gathered checkpoints; after that only newer ones of the same names are gathered."""
UNWRITTEN_EVENTS = 16 << 20
"""The bytes of events that wait for a full disk; after that no progress is kept."""

# -- files of a node ------------------------------------------------------------------------

LISTED_CHECKPOINTS = 50_000
"""The files and folders below a folder of checkpoints or of TensorBoard's curves."""
LISTED_OUTPUTS = 200_000
"""The files and folders below a working directory from which outputs are gathered."""
LISTED_BYTES = 32 << 20
"""The size of all names in one listing."""
FUNCTION_BYTES = 64 << 20
"""The size of a pickled function with its arguments, and that of the value it returns."""
FILE_BYTES_AHEAD = 16 << 20
"""The bytes of a file that may be sent and not yet written; an agent stops at half of it."""


def too_many_files(folder: str, most: int) -> str:
    """Return the message about a folder with more than `most` entries."""
    return (
        f"{folder} has more than {most:,} files and folders (or very long names):"
        " nothing is gathered from it until some are removed"
    )


class Allowance:
    """A token bucket: it holds `burst`, refills at `per_s`, and one `spend` may overdraw it."""

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._level, self._at = burst, now

    def spend(self, amount: float, now: float) -> None:
        self._fill(now)
        self._level -= amount

    def wait_s(self, now: float) -> float:
        """Return the seconds until something may be spent again; 0: now."""
        self._fill(now)
        return max(0.0, -self._level / self._per_s)

    def _fill(self, now: float) -> None:
        self._level = min(self._burst, self._level + self._per_s * max(0.0, now - self._at))
        self._at = max(now, self._at)
