"""The backend `ssh`: tasks run on hosts to which the system's ssh client logs in."""

from __future__ import annotations

from tfcluster.kinds import BackendKind


class SshKind(BackendKind):
    """Hosts by their addresses, one node for each."""

    nodes = "tfcluster.backends.ssh.ssh_nodes:SshNodes"


KIND = SshKind()
