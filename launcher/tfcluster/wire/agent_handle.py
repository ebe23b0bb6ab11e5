"""The handle of an agent: what its backend knows of it and can do with it (without asyncio)."""

from __future__ import annotations

from tfcluster.node_loss import NodeLoss


class AgentHandle:
    """A handle that knows nothing and does nothing; each backend overrides what it can do."""

    can_kill = False
    """True if an agent that does not acknowledge a stop within seconds may be killed."""

    @property
    def loss(self) -> NodeLoss | None:
        """The reason why the agent's node ended or does not answer; None if unknown."""
        return None

    def last_words(self) -> str:
        """Return what the agent or its transport wrote to stderr."""
        return ""

    def kill(self) -> None:
        """Send SIGKILL to the agent."""

    def detach(self) -> None:
        """Note that the agent stays for another run, so that `end` does not wait for its exit."""

    async def disconnect(self) -> None:
        """Close a connection that delivers nothing any more."""

    async def has_gone(self) -> bool:
        """Return whether the last dial, which failed, proved that the agent is gone.

        There is then no need to wait for its lease.
        """
        return False

    async def explain(self) -> None:
        """Update `loss` once the node is given up."""

    def on_answer(self) -> None:
        """Note that the agent has answered, for the first time or after a reconnect."""

    async def end(self, *, keeps_folders: bool) -> bool:
        """Wait until the agent is gone; called when no message can come any more.

        Return True if it is certain that no process started by an agent with a lease is alive.
        `keeps_folders`: the tasks' files stay, even if they are in the agent's container.
        """
        return False
