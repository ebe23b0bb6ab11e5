"""What docker is told of one task: image, limits, and what it sees of the daemon's machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tfcluster.plan import command
from tfcluster.plan.cluster import Seat
from tfcluster.plan.plan import Container
from tfcluster.plan.resources import Share
from tfcluster.plan.settings import named_data_dir
from tfcluster.plan.surroundings import Surroundings
from tfcluster.spec.images import DEFAULT_IMAGE

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec


def container(spec: ClusterSpec, around: Surroundings, seat: Seat, share: Share) -> Container:
    """The container of the task at `seat`, whose part of the machine is `share`."""
    wishes, data = spec.resources, named_data_dir(spec, seat.host)
    takes_all = share.gpus is None and "all" in (wishes.gpus, seat.gpus)
    return Container(
        image=spec.runtime.image or DEFAULT_IMAGE,
        cpus=wishes.cpus,
        cores=share.cores,
        memory=wishes.memory,
        gpus="all" if takes_all else share.gpus or None,
        data_dir=_mounted(data and data[0], around),
        shared_dir=_mounted(spec.checkpoints.dir, around),
        user=spec.runtime.user,
    )


def inside(share: Share) -> Share:
    """As the task sees it: docker numbers the GPUs of a container from 0."""
    return share if share.gpus is None else replace(share, gpus=tuple(range(len(share.gpus))))


def of_daemons_machine(path: str, around: Surroundings) -> str:
    """A folder as the spec names it; the daemon takes only absolute ones."""
    return command.storage(path, around.spec_dir, around.environ)


def _mounted(path: str | None, around: Surroundings) -> str | None:
    """What lies in a bucket is not."""
    return None if path is None or "://" in path else of_daemons_machine(path, around)
