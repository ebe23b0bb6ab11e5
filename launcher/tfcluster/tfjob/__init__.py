"""Kubeflow's TFJobs as specs of tfcluster, with a note for each field that means something else.

The fields, their defaults and their meaning are those of github.com/kubeflow/training-operator,
release 1.9, whose source the modules name: ``pkg/apis/kubeflow.org/v1`` for the fields and
``pkg/controller.v1`` for what the operator does with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Note:
    """A remark about one field of the manifest, for the reader of the spec."""

    kind: Literal["missing", "changed", "needed"]
    """`missing`: the spec has no counterpart; `changed`: it means something else in the spec;
    `needed`: the spec is not complete without an answer."""
    place: str
    """The path of the field, such as ``spec.runPolicy.suspend``."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.place}: {self.message}"
        return f"{head}\n    → {self.fix}" if self.fix else head
