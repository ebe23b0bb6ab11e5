"""The warnings at the end of a run: what no task used, and what may be left on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfcluster.nodes.hub import Hub
from tfcluster.rundir import chaos
from tfcluster.rundir.chaos import Fault
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.supervision.supervisor import Supervisor


def closing_warnings(
    hub: Hub, supervisor: Supervisor, faults: Sequence[Fault], state: RunSnapshot
) -> Iterator[str]:
    """Yield a sentence for each; to be called once all links are closed."""
    if (unread := supervisor.gang.unread_settings()) is not None:
        yield unread
    for node in hub.unconfirmed:
        yield (
            f"{node} may not know that the run is over: its agent ends what still runs there"
            f" within {supervisor.policy.lease_s:g} s;"
            f" ~/.cache/tfcluster/nodes/{state.run} is not removed"
        )
    yield from hub.leftovers
    yield from chaos.not_injected(faults, state)
