"""What the coordinator may expect of a backend, and what a backend declares about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tfcluster.plan.plan import NodePlan
    from tfcluster.wire.link import AgentLink


Tell = Callable[[str], None]
"""Is told, in a sentence, what a user has to wait for."""


def ignore_event(sentence: str) -> None:
    """A `Tell` for callers that only want the outcome."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """A backend's nature; the coordinator decides by it, never by the backend's name."""

    shares_filesystem: bool
    """Tasks write straight into the run folder, so no log or file is sent."""
    has_lease: bool
    """A lost connection may come back; without, the agent ends its tasks when it closes."""
    holds_ports: bool
    """Ports stay ours between two attempts (Linux), else they are drawn anew on a clash."""
    clears_up: bool = False
    """`close` removes, or names, what a node has that was not told of the run's end; and with a
    lost node goes all that was prepared on it."""


class Backend(Protocol):
    """Reaches the nodes of one kind."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def may_hold_resources(self) -> bool:
        """Whether what was made for the run's nodes may still be there, after `close` too."""
        ...

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
        """Reach the node's agent, started if need be, and greet it. Only an agent that is
        reached over a network has a lease. `is_fenced`: nothing can live any more that an agent
        reached before has started; else its end must be proved before another one starts.

        Raises SurroundingsError when it does not come up; the text holds its last words.
        """
        ...

    async def repair(self) -> list[str]:
        """Before another attempt: give nodes back what was taken from them; what that was."""
        ...

    async def close(self, *, keeps_folders: bool = False) -> list[str]:
        """The run is over: what was made for its nodes goes, but for what holds folders that are
        to stay. What a user should know of it, in sentences."""
        ...


@runtime_checkable
class EndsLostRuns(Protocol):
    """A backend whose nodes a run outlives when its coordinator is killed, until its lease ends."""

    async def end_run(
        self, node: NodePlan, *, run_id: str, former: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Have a node end what such a run has left there.

        Returns what `agent.fencing.end_lost_run` does. `former`: the identity of the node's agent.

        Raises NodeLostError where the node does not answer.
        """
        ...
