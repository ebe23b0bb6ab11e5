"""The one coordinator of a run in the cluster: the pod that the run's Job names leads the run.

The pod of a node that was cut off may come back beside its successor, and a kubelet starts the
container of a pod again that is already marked as deleted. So a coordinator takes the lead before
it starts, never in such a pod, and asks before each change of an object whether it still leads. The
name is an annotation of the Job, which coordinators may patch in any case, and not a Lease, which
would need one more rule in each namespace's Role.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from tfcluster.backends.kubernetes.kube_client import KubeCluster, KubeError, Object
from tfcluster.backends.kubernetes.reasons import is_over

LEADER: Final = "tfcluster.dev/leader"
"""The annotation of a Job with the pod whose coordinator leads the run, or was the last to."""
_POLL_S: Final = 1.0


def _end(why: str) -> NoReturn:
    """End this process at once: whatever it did would disturb the leader."""
    sys.stderr.write(f"tfcluster: {why}\n")
    sys.stderr.flush()
    os._exit(os.EX_TEMPFAIL)


@dataclass(frozen=True, slots=True)
class Leadership:
    """The lead of the run of `job`, as the coordinator in `pod` sees it. All methods block."""

    cluster: KubeCluster
    job: str
    pod: str = field(default_factory=socket.gethostname)
    lose: Callable[[str], NoReturn] = _end
    """Called with the reason why this process may not go on."""
    sleep: Callable[[float], None] = time.sleep

    def leader(self) -> str | None:
        """Return the pod that leads the run; None if none ever has."""
        return _leader_of(self.cluster.find(self._path))

    def take(self) -> None:
        """Take the lead, once no other pod has it that may go on."""
        while True:
            self.require_lasting_pod()
            job = self.cluster.get(self._path)
            leader = _leader_of(job)
            if leader == self.pod:
                return
            if leader is not None and not self._is_over(leader):
                self.sleep(_POLL_S)
            elif self._note(job):
                return

    def require(self) -> None:
        """End this process if another pod leads the run."""
        if (leader := self.leader()) not in (None, self.pod):
            self.lose(f"the pod {leader} leads the run now; the coordinator in {self.pod} ends")

    def require_lasting_pod(self) -> None:
        """End this process if its pod is being deleted or was removed."""
        if self._is_over(self.pod):
            self.lose(f"the pod {self.pod} is being deleted, so its coordinator does not start")

    def _is_over(self, pod: str) -> bool:
        found = self.cluster.find(f"pods/{pod}")
        return found is None or is_over(found)

    def _note(self, job: Object) -> bool:
        """Note at the Job that this pod leads; return False if it has changed meanwhile."""
        version = job["metadata"].get("resourceVersion")
        body = {"metadata": {"resourceVersion": version, "annotations": {LEADER: self.pod}}}
        try:
            self.cluster.patch(self._path, body)
        except KubeError as error:
            if not error.is_conflict:
                raise
            return False
        return True

    @property
    def _path(self) -> str:
        return f"batch/jobs/{self.job}"


def _leader_of(job: Object | None) -> str | None:
    notes = {} if job is None else job["metadata"].get("annotations", {})
    leader: str | None = notes.get(LEADER)
    return leader
