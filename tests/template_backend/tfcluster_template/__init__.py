"""A template for new backends: the least that one needs, complete with a queue for its nodes.

Its nodes are slots: files called ``HOST.free`` in the folder `runtime.template.queue`. A run takes
one for each task, waits while there are too few, and gives them back at its end. An agent is
reached by a command that starts Python, as with ssh; here it runs on this machine.
"""

from __future__ import annotations

from tfcluster.kinds import BackendKind, Capabilities


class TemplateKind(BackendKind):
    """What the spec and the plan must know: the nodes have names, but no host names yet."""

    capabilities = Capabilities(makes_nodes=True)
    nodes = "tfcluster_template.nodes:TemplateNodes"
    section = "tfcluster_template.section:Template"
    why_no_addresses = "the queue chooses the hosts"

    def place(self, task: str, number: int, host: str, runtime: object) -> tuple[str, str]:
        return f"node-{number}", ""


KIND = TemplateKind()
