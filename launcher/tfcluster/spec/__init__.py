"""The spec: the user's JSON file, checked against a model and returned as a `ClusterSpec`.

The values below are light: start-up imports them without pydantic.
"""

from dataclasses import dataclass
from typing import Literal

JobName = Literal["chief", "worker", "ps", "evaluator"]
JOBS: tuple[JobName, ...] = ("chief", "worker", "ps", "evaluator")
"""The job names, in the order of tables and logs."""


@dataclass(frozen=True, slots=True)
class HostChoice:
    """The unparsed host options: hosts that replace the spec's, and those to include or exclude."""

    hosts: str | None = None
    """``--hosts``: ``gpu1,anna@gpu2:2``, or a file name."""
    hostfile: str | None = None
    """``--hostfile``: a file name."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    workers: int | None = None
    """``run -n``: the number of slots to use; None: all."""


NO_CHOICE = HostChoice()
