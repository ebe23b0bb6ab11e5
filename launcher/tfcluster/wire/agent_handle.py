"""What a link may ask of whoever holds its agent: a process here, or a transport to elsewhere."""

from __future__ import annotations


class AgentHandle:
    """Knows nothing and can do nothing; a backend's own says more."""

    can_kill = False
    """Whether an agent that does not acknowledge a stop within seconds may be killed."""

    @property
    def story(self) -> str:
        """What has become of the agent's node, or keeps it from answering, where that is known."""
        return ""

    def last_words(self) -> str:
        """What the agent, or what led to it, wrote to stderr."""
        return ""

    def kill(self) -> None:
        """SIGKILL to the agent."""

    def leave(self) -> None:
        """The agent has said that it stays, for another run: its end is not to be waited for."""

    async def cut(self) -> None:
        """End a connection over which nothing comes any more."""

    async def has_gone(self) -> bool:
        """Whether the last dial, which failed, found the node without the agent: then no lease is
        to be waited for."""
        return False

    async def explain(self) -> None:
        """The node is given up: once more, find out what has become of it."""

    def reached(self) -> None:
        """The agent has answered, for the first time or once more."""

    async def end(self, *, keeps_folders: bool) -> bool:
        """Once nothing more comes; returns when the agent is gone. True where it is certain that
        nothing lives which an agent with a lease had started. `keeps_folders`: what tasks have
        left is to stay, also where it is in what the agent ends with."""
        return False
