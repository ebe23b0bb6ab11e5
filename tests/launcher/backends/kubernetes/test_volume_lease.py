"""One pod at a time holds the lease of a run's folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tfcluster.backends.kubernetes.submitted.volume_lease import STALE_S, Lease


@dataclass
class Pods:
    """Pods beside one volume, and their time."""

    folder: Path
    time: float = 0.0
    ended: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    renewing: Lease | None = None
    """The lease that is renewed while others wait."""

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        if self.renewing is not None:
            self.renewing.renew()

    def lease(self, pod: str) -> Lease:
        return Lease(
            self.folder / "lease",
            pod,
            self.ended.__contains__,
            now=lambda: self.time,
            sleep=self.sleep,
            lose=lambda: self.lost.append(pod),
        )


def test_a_free_lease_is_taken_at_once_and_by_the_same_pod_again(tmp_path: Path) -> None:
    pods = Pods(tmp_path)
    pods.lease("a").take()
    pods.lease("a").take()
    assert pods.time == 0


def test_a_pod_waits_until_the_lease_of_another_is_stale(tmp_path: Path) -> None:
    pods = Pods(tmp_path)
    old, new = pods.lease("a"), pods.lease("b")
    old.take()
    new.take()
    assert pods.time >= STALE_S
    old.renew()
    assert pods.lost == ["a"]
    new.renew()
    assert pods.lost == ["a"]


def test_a_renewed_lease_is_waited_for_until_its_pod_has_ended(tmp_path: Path) -> None:
    pods = Pods(tmp_path)
    old = pods.lease("a")
    old.take()
    pods.renewing = old
    sleep = pods.sleep

    def end_later(seconds: float) -> None:
        sleep(seconds)
        if pods.time >= 3 * STALE_S:
            pods.renewing = None
            pods.ended.add("a")

    new = pods.lease("b")
    new.sleep = end_later
    new.take()
    assert 3 * STALE_S <= pods.time < 4 * STALE_S
    assert pods.lost == []
