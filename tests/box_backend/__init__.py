"""A stub of a third container backend: boxes, whose files outlive the agents in them.

Only its `Kind` is here: what a spec, a plan and supervision need of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tfcluster.kinds import Capabilities, Kind
from tfcluster.node_loss import LossNature
from tfcluster.spec.fields import Mistake
from tfcluster.spec.model import ClusterSpec


class BoxKind(Kind):
    """Boxes named after their tasks."""

    capabilities = Capabilities(
        makes_nodes=True,
        has_image=True,
        has_own_network=True,
        has_one_task=True,
        on_one_machine=True,
    )
    losses = {LossNature.INFRASTRUCTURE: ("box-lost", "look into the box")}  # noqa: RUF012

    def place(self, task: str, number: int, host: str, runtime: object) -> tuple[str, str]:
        return task, task

    def is_here(self, environ: object) -> bool:
        return True

    def find_mistakes(self, spec: ClusterSpec) -> Iterator[Mistake]:
        if spec.checkpoints.dir is not None:
            yield Mistake(("checkpoints", "dir"), "a box has no such folder", "leave it out")


KIND = BoxKind()
