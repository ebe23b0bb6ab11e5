"""Ask a Kubernetes cluster as an administrator does, and wait for what it does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kube_binaries import programs
from .machine import HANG_S, LabError


@dataclass(frozen=True, slots=True)
class Kubectl:
    """The client of 1.20 with one kubeconfig; users need not have it."""

    config: Path

    def __call__(self, *args: str, given: object = None, timeout: float = HANG_S) -> str:
        """Return the stdout of `kubectl ARGS`; `given`: an object for its stdin, as JSON."""
        done = self.run(*args, given=given, timeout=timeout)
        if done.returncode != 0:
            raise LabError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def run(
        self, *args: str, given: object = None, timeout: float = HANG_S
    ) -> subprocess.CompletedProcess[str]:
        argv = [str(programs() / "kubectl"), f"--kubeconfig={self.config}", *args]
        text = None if given is None else json.dumps(given)
        return subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=timeout, check=False
        )

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "-o", "json"))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": objects})
