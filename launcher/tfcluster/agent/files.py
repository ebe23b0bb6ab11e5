"""What a remote node's agent does with files: trees that come, listings and contents that go."""

from __future__ import annotations

from tfcluster.agent.incoming import Incoming
from tfcluster.agent.outgoing import Outgoing
from tfcluster.agent.shared import look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tfcluster.agent.line import Line


class Files:
    """Apart from the agent, so that one beside its coordinator need not import a hash."""

    def __init__(self, cache: str, line: Line) -> None:
        self.incoming = Incoming(cache, line.say)
        self.outgoing = Outgoing(line)
        self._line = line

    def look(self, order: dict[str, Any]) -> None:
        """Whether a folder of the coordinator's machine is here, too."""
        self._line.say(look(order))
