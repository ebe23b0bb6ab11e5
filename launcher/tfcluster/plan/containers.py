"""What docker is told of one task: image, limits, and what it sees of the daemon's machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tfcluster.plan import command
from tfcluster.plan.cluster import Seat
from tfcluster.plan.plan import Container
from tfcluster.plan.resources import Share
from tfcluster.plan.surroundings import Surroundings
from tfcluster.spec.images import DEFAULT_IMAGE

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec


def container(spec: ClusterSpec, around: Surroundings, seat: Seat, share: Share) -> Container:
    """The container of the task at `seat`, whose part of the machine is `share`."""
    wishes = spec.resources
    takes_all = share.gpus is None and "all" in (wishes.gpus, seat.gpus)
    return Container(
        image=spec.runtime.image or DEFAULT_IMAGE,
        cpus=wishes.cpus,
        cores=share.cores,
        memory=wishes.memory,
        gpus="all" if takes_all else share.gpus or None,
        data_dir=_data_dir(spec, around, seat),
        shared_dir=_shared_dir(spec, around),
    )


def inside(share: Share) -> Share:
    """As the task sees it: docker numbers the GPUs of a container from 0."""
    return share if share.gpus is None else replace(share, gpus=tuple(range(len(share.gpus))))


def data_dir(spec: ClusterSpec, around: Surroundings, host: str) -> tuple[str, str] | None:
    """Where data sets lie for a container's task, and the field that says so."""
    for key in (host, "*"):
        settings = spec.runtime.hosts.get(key)
        if settings is not None and settings.data_dir:
            return command.storage(
                settings.data_dir, around.spec_dir, around.environ
            ), f"runtime.hosts.{key}.data_dir"
    return None


def _data_dir(spec: ClusterSpec, around: Surroundings, seat: Seat) -> str | None:
    found = data_dir(spec, around, seat.host)
    return None if found is None or "://" in found[0] else found[0]


def _shared_dir(spec: ClusterSpec, around: Surroundings) -> str | None:
    path = spec.checkpoints.dir
    if path is None or "://" in path:
        return None
    return command.storage(path, around.spec_dir, around.environ)
