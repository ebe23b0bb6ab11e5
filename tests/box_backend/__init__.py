"""A stub of a third container backend: boxes, whose files outlive the agents in them.

Only its `BackendKind` is here: what a spec, a plan and supervision need of it. Its section of the
spec is in `tests/contracts/test_recipes.py`, which puts all of it in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfcluster.kinds import BackendKind, Capabilities
from tfcluster.node_loss import LossNature
from tfcluster.spec.fields import Mistake
from tfcluster.spec.model import ClusterSpec


class BoxKind(BackendKind):
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
        runtime: Any = spec.runtime
        if runtime.box.size > 8 and spec.checkpoints.dir is not None:
            yield Mistake(("runtime", "box", "size"), "such a box has no shared folder", "use 8")


KIND = BoxKind()
