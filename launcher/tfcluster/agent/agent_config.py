"""The orders for a relay: to have an agent on its node (`AgentConfig`), or to end a lost run.

It is a line of JSON on its way through bootstrap, relay and entry, or to a warm agent, and each of
its readers checks it.
"""

from __future__ import annotations

import json

from tfcluster.agent.message_fields import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Path = str
    Json = Mapping[str, Any]
    Env = Mapping[str, str]


class NodeOrder(Message):
    """An order for a relay. Unknown fields are an error: both sides have the same code."""

    is_exact = True

    def to_line(self) -> bytes:
        """Return the order as a line of JSON."""
        return json.dumps(self.to_json(), default=vars).encode() + b"\n"


class WarmStay(Message):
    """The stay of a warm agent after a run, until the next one comes."""

    is_exact = True
    socket: Path
    """The socket on which it then listens."""
    seconds: float
    about: str
    """The Python whose imports it keeps."""


class SlurmJob(Message):
    """The job of Slurm that the run's coordinator is in."""

    is_exact = True
    id: str
    restarts: int


class AgentConfig(NodeOrder):
    """The agent of one node for one run."""

    run_id: str
    node: str
    token: str
    """The coordinator shows it in each hello."""
    socket: Path
    """The agent's socket; a relay takes a name as one in the user's private folder there."""
    ports_dir: Path | None = None
    """The folder of port locks, as for `socket`; None: no other run can take a port."""
    lease_s: float | None = None
    """Seconds for which the agent keeps its tasks without a coordinator; None: it ends with its
    connection."""
    cache: Path | None = None
    """The folder for received files; the bootstrap of a remote node sets it."""

    is_tied: bool = False
    """The agent ends with its connection, although it has a lease."""
    announces: bool = False
    """A scheduler decides about its end: signals only announce that. So it is if `is_tied`."""
    echo: Path | None = None
    """A file to which the tasks' output is written, too."""
    descriptors: int | None = None
    """The tasks' limit of open files; None: that of the process."""
    is_private: bool = False
    """True if its tasks have a network of their own, with loopback only."""
    namespaces: Env | None = None
    """The namespaces of a simulated network that it moves into, by kind."""
    warm: WarmStay | None = None

    starts: bool = True
    """The relay starts an agent if none runs; else it joins the one that `former` identifies."""
    former: Json | None = None
    """The `fencing.identity` of the agent before it, which must have ended."""
    is_fenced: bool = False
    """True if it is certain that no process of the `former` agent is alive."""
    container_socket: Path | None = None
    """The socket of the process that waits in this container to become the agent."""
    job: SlurmJob | None = None
    """The job to watch once the lease is over: its coordinator may be gone with its node."""


class EndLostRun(NodeOrder):
    """End what a run whose coordinator is gone has left on this node (`fencing.end_lost_run`)."""

    run_id: str
    former: Json
    """The `fencing.identity` of the run's agent."""
    cache: Path = ""
