"""The backend `simulated`: each task runs on this machine, on a network of slow links."""

from __future__ import annotations

from tfcluster.kinds import Capabilities, Kind

_FIRST = 2
"""The last number of the first node's address; .1 is nobody's."""


class SimulatedKind(Kind):
    """Nodes named after their tasks; they share the cores, the files and the Python of this
    machine, and each has its own address."""

    capabilities = Capabilities(
        makes_nodes=True,
        on_one_machine=True,
        simulates_network=True,
        sees_files=True,
        ties_agents=True,
    )
    nodes = "tfcluster.backends.simulated.simulated_nodes:SimulatedNodes"
    exposure = (
        "TensorFlow listens in the simulated network, without a password: only the run's own"
        " tasks can reach it"
    )
    why_no_addresses = "a simulated network is on this machine"

    def place(self, task: str, number: int, host: str, runtime: object) -> tuple[str, str]:
        return task, f"10.77.{(number + _FIRST) // 256}.{(number + _FIRST) % 256}"

    def is_here(self, environ: object) -> bool:
        return True


KIND = SimulatedKind()
