"""The rules of a spec for pods that no section of it can check alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tfcluster.spec import FieldPath, shorten
from tfcluster.spec.fields import Mistake
from tfcluster.spec.sections import Checkpoints, Resources, Runtime

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

_UIDS = re.compile(r"\d{1,10}(:\d{1,10})?", re.ASCII)
_VOLUMES = "runtime.kubernetes.volumes"


def find_mistakes(spec: ClusterSpec) -> Iterator[Mistake]:
    """Yield the settings of other sections that cannot work in pods."""
    yield from _check_user(spec.runtime)
    yield from _check_resources(spec.runtime, spec.resources)
    yield from _check_folders(spec.runtime, spec.checkpoints)


def _check_user(runtime: Runtime) -> Iterator[Mistake]:
    if runtime.user is not None and not _UIDS.fullmatch(runtime.user):
        message = f"Kubernetes knows users by their numbers, not as {shorten(runtime.user)}"
        yield Mistake(("runtime", "user"), message, 'write UID[:GID], for example "1000:1000"')


def _check_resources(runtime: Runtime, resources: Resources) -> Iterator[Mistake]:
    settings = runtime.kubernetes
    if resources.memory is not None:
        fix = '"runtime": {"kubernetes": {"resources": {"limits": {"memory": "8Gi"}}}}'
        message = "the memory of a pod is written in runtime.kubernetes.resources"
        yield Mistake(("resources", "memory"), message, f"write for example {fix}")
    of_roles = [runtime.of_role(job).kubernetes for job in runtime.roles]
    pods = [each.resources for each in (settings, *of_roles)]
    has_devices = any("/" in name for resources in pods for name in resources.limits)
    if resources.gpus and not has_devices and not settings.pod_template:
        fix = "write --set runtime.kubernetes.resources.limits='{\"nvidia.com/gpu\": 1}'"
        message = "the pods have no GPU: runtime.kubernetes.resources.limits names none"
        yield Mistake(("resources", "gpus"), message, fix)


def _check_folders(runtime: Runtime, checkpoints: Checkpoints) -> Iterator[Mistake]:
    folders: dict[FieldPath, str | None] = {("checkpoints", "dir"): checkpoints.dir}
    for host, settings in runtime.hosts.items():
        folders["runtime", "hosts", host, "data_dir"] = settings.data_dir
    for path, folder in folders.items():
        if folder is None or "://" in folder:
            continue
        if not folder.startswith("/"):
            fix = "write the absolute path of a folder in the pods"
            message = f"pods do not see this machine's folder {shorten(folder)}"
            yield Mistake(path, message, f"{fix}, on a volume of {_VOLUMES}")
        elif path == ("checkpoints", "dir") and not _is_mounted(runtime, folder):
            fix = f"mount a shared volume there: {_VOLUMES}"
            yield Mistake(path, f"no volume of the pods is mounted at {shorten(folder)}", fix)


def _is_mounted(runtime: Runtime, folder: str) -> bool:
    """Return whether `folder` is on a volume; a pod template may mount any."""
    mounts = (volume.mount for volume in runtime.kubernetes.volumes)
    is_below = any(PurePosixPath(folder).is_relative_to(mount) for mount in mounts)
    return is_below or bool(runtime.kubernetes.pod_template)
