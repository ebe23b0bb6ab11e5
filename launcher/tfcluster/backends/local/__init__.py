"""The backend `local`: tasks run on this machine."""

from __future__ import annotations

from tfcluster.agent.processes import IS_LINUX
from tfcluster.kinds import BackendKind, Capabilities


class LocalKind(BackendKind):
    """This machine, one node for all tasks."""

    capabilities = Capabilities(shares_filesystem=True, has_lease=False, holds_ports=IS_LINUX)
    nodes = "tfcluster.backends.local.local_nodes:LocalNodes"

    def place(self, task: str, number: int, host: str, runtime: object) -> tuple[str, str]:
        return "local", host


KIND = LocalKind()
