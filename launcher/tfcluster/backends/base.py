"""The interface of a backend to the coordinator, and the capabilities a backend declares."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tfcluster.agent.catalogue import LostRunEnded
    from tfcluster.plan.plan import NodePlan
    from tfcluster.wire.link import AgentLink


Tell = Callable[[str], None]
"""A callback that shows a sentence to the user: what the command waits for."""


def ignore_event(sentence: str) -> None:
    """Do nothing: a `Tell` for callers that only need the result."""


def agent_socket_name(run_id: str, node: str) -> str:
    """Return the name of the socket of a run's agent; a socket's path must be short."""
    return f"{run_id[-40:]}.{zlib.crc32(node.encode()):08x}.agent"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties of a backend; the coordinator decides by them, never by the backend's name."""

    shares_filesystem: bool
    """Tasks write straight into the run folder, so no log or file is sent."""
    has_lease: bool
    """A lost connection may be resumed; without a lease the agent kills its tasks at once."""
    holds_ports: bool
    """Ports stay bound between two attempts (Linux); otherwise a taken one is chosen again."""
    clears_up: bool = False
    """`close` removes, or names, the leftovers of nodes that did not hear of the run's end; and a
    lost node loses all that was prepared on it."""


class Backend(Protocol):
    """A kind of nodes, and how they are reached."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def may_hold_resources(self) -> bool:
        """True if resources made for the run's nodes may still exist, after `close` too."""

    async def connect(
        self,
        node: NodePlan,
        *,
        run_id: str,
        token: str,
        tell: Tell = ignore_event,
        lease_s: float = 60.0,
        is_fenced: bool = False,
    ) -> AgentLink:
        """Connect to the node's agent, which is started if it does not run.

        `lease_s`: seconds an agent reached over a network keeps its tasks alive without the
        coordinator. `is_fenced`: it is certain that no process of an earlier agent of this node
        is alive; otherwise the end of that agent must be proved before another one starts.

        Raises SetupError if the agent does not start; the text holds its error output.
        """

    async def repair(self) -> list[str]:
        """Repair the nodes before another attempt; return what was repaired, in sentences."""

    async def close(self, *, keeps_folders: bool = False) -> list[str]:
        """Remove what was made for the run's nodes; return what the user should know, in sentences.

        `keeps_folders`: what holds the tasks' folders stays.
        """


@runtime_checkable
class EndsLostRuns(Protocol):
    """A backend on whose nodes tasks outlive a killed coordinator, until the lease ends."""

    async def end_run(
        self, node: NodePlan, *, run_id: str, former: Mapping[str, Any]
    ) -> LostRunEnded:
        """End the leftover processes of such a run; return the node's answer
        (`agent.fencing.end_lost_run`).

        `former`: the identity of the node's agent. Raises NodeLostError if the node does not
        answer.
        """
