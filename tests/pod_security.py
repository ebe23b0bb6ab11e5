"""The Pod Security Standard "restricted", as a check of one pod's spec.

kubernetes.io/docs/concepts/security/pod-security-standards lists the controls; those of "baseline"
belong to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
_PROFILES = ("RuntimeDefault", "Localhost")


def violations(spec: dict[str, Any]) -> list[str]:
    """Return every rule that the spec of a pod breaks."""
    return [
        *_of_pod(spec),
        *(text for one in _containers(spec) for text in _of_container(spec, one)),
    ]


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return [container for kind in kinds for container in spec.get(kind, ())]


def _of_pod(spec: dict[str, Any]) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", ()):
        if not (set(volume) - {"name"}) <= _VOLUMES:
            yield f"volume {volume['name']}"
    security = spec.get("securityContext", {})
    if security.get("runAsUser") == 0:
        yield "pod: runAsUser"
    if "sysctls" in security or "windowsOptions" in security or "seLinuxOptions" in security:
        yield "pod: sysctls, windowsOptions or seLinuxOptions"


def _of_container(spec: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    name, own = container["name"], container.get("securityContext", {})
    both = {**spec.get("securityContext", {}), **own}
    capabilities = own.get("capabilities", {})
    if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
        yield f"{name}: runAsNonRoot"
    if both.get("seccompProfile", {}).get("type") not in _PROFILES:
        yield f"{name}: seccompProfile"
    if "ALL" not in capabilities.get("drop", ()):
        yield f"{name}: capabilities.drop"
    if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities.add"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield f"{name}: hostPort"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
