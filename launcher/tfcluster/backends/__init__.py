"""Backends: how nodes are made and reached; `open_nodes` begins the life of a run's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from tfcluster import kinds
from tfcluster.backends.base import Nodes, RunContext

if TYPE_CHECKING:
    from tfcluster.plans.plan import NodePlan


def open_nodes(planned: Sequence[NodePlan], run: RunContext) -> Nodes:
    """Return the nodes of one backend for ``async with``; all `planned` have the same backend."""
    return class_of(planned[0])(planned, run)


def class_of(node: NodePlan) -> type[Nodes]:
    """Return the class that makes and reaches nodes like `node`."""
    module, name = kinds.get(node.backend).nodes.split(":")
    nodes: type[Nodes] = getattr(import_module(module), name)
    return nodes
