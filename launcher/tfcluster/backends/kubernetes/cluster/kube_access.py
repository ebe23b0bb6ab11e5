"""The cluster that a spec, a run or a pod means: found in the kubeconfig, or around this pod."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

import yaml

from tfcluster.backends.kubernetes.cluster.kube_client import Cluster
from tfcluster.errors import SetupError

if TYPE_CHECKING:
    import urllib3

JOB_VARIABLE: Final = "TFCLUSTER_KUBERNETES_JOB"
"""Set in the coordinator's pod: the name of its Job."""
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_DAMAGED: Final = (OSError, ValueError, KeyError, TypeError, yaml.YAMLError)
"""The official client's errors for a kubeconfig that it cannot read."""
_NAME: Final = re.compile(r"(.+)/([^/ ]+?)(?: \(context (.+)\))?")
"""The form of `Cluster.name`."""


class Settings(Protocol):
    """The fields of the spec's section `runtime.kubernetes` that lead to a cluster."""

    @property
    def context(self) -> str | None: ...
    @property
    def namespace(self) -> str | None: ...


class ClientAccess:
    """The cluster of a context of the kubeconfig, by the official client."""

    def __init__(self, configuration: Any) -> None:
        from kubernetes.client import ApiClient

        self._configuration = configuration
        self.host = str(configuration.host).rstrip("/")
        self.pool: urllib3.PoolManager = ApiClient(configuration).rest_client.pool_manager

    def headers(self) -> dict[str, str]:
        """Return the headers that sign in; the client renews a token that ends."""
        settings = self._configuration.auth_settings().values()
        return {each["key"]: each["value"] for each in settings if each["in"] == "header"}

    def client_configuration(self) -> Any:
        return self._configuration


class PodAccess:
    """The cluster around this pod, by the token of its ServiceAccount, which the kubelet renews.

    The rules are those of client-go (rest/config.go: InClusterConfig). The official client would
    take half a second of a core for its import, at each start of a coordinator. Raises KeyError and
    OSError outside of a pod.
    """

    def __init__(self) -> None:
        import urllib3

        host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
        self.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._folder = Path(_SERVICE_ACCOUNT)
        self.namespace = (self._folder / "namespace").read_text().strip()
        self.pool = urllib3.PoolManager(ca_certs=str(self._folder / "ca.crt"))

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {(self._folder / 'token').read_text().strip()}"}

    def client_configuration(self) -> Any:
        from kubernetes import client, config

        made = client.Configuration()
        config.load_incluster_config(client_configuration=made)
        return made


def reach(settings: Settings, *, patience_s: float = 10.0) -> Cluster:
    """Return the cluster of `settings`: the pod's own one in a coordinator's pod, else that of the
    kubeconfig's context, else the pod's own one.

    Raises SetupError without the official client, or without a cluster.
    """
    is_around = JOB_VARIABLE in os.environ or not (settings.context or _has_kubeconfig())
    try:
        if is_around:
            around = PodAccess()
            namespace = settings.namespace or around.namespace
            return Cluster(around, namespace=namespace, patience_s=patience_s)
        return _of_context(settings, patience_s)
    except (*_DAMAGED, _NoContextError) as error:
        where = f"context {settings.context}" if settings.context else "cluster"
        why = "no kubeconfig, and this is no pod" if is_around else str(error)
        raise SetupError(
            f"there is no Kubernetes {where} to use: {why}",
            fix="`kubectl config get-contexts` lists those of the kubeconfig (KUBECONFIG, else"
            " ~/.kube/config); runtime.kubernetes.context chooses one",
        ) from None


def _of_context(settings: Settings, patience_s: float) -> Cluster:
    try:
        from kubernetes import client, config
    except ImportError:
        raise SetupError(
            "the backend kubernetes needs Kubernetes' official client",
            fix="install it: `pip install 'tfcluster[kubernetes]'`",
        ) from None
    configuration = client.Configuration()
    try:
        loader = _loader(settings.context)
        loader.load_and_set(configuration)
        current = loader.current_context
    except config.ConfigException as error:
        raise _NoContextError(str(error)) from None
    namespace = settings.namespace or current["context"].get("namespace") or "default"
    access, name = ClientAccess(configuration), str(current["name"])
    return Cluster(access, namespace=namespace, patience_s=patience_s, context=name)


class _NoContextError(Exception):
    """The kubeconfig has no such context, or none that can be used."""


def reach_again(name: str, *, patience_s: float) -> Cluster:
    """Return the cluster that was called `name` (`Cluster.name`).

    If its context does not lead there any more, any other context that does is used. Raises
    SetupError where none does.
    """
    match = _NAME.fullmatch(name)
    host, namespace, former = match.groups() if match else (name, None, None)
    if JOB_VARIABLE in os.environ:
        return reach(SimpleNamespace(context=None, namespace=namespace), patience_s=patience_s)
    why = f"no context of the kubeconfig leads to {host}"
    for context in dict.fromkeys((former, *_context_names(namespace))):
        try:
            wanted = SimpleNamespace(context=context, namespace=namespace)
            found = reach(wanted, patience_s=patience_s)
        except SetupError as error:  # a context that is broken hides no other
            why = error.message
            continue
        if found.host == host:
            return found
    raise SetupError(why)


def _context_names(namespace: str | None) -> list[str]:
    """Return the contexts of the kubeconfig, those with this namespace first."""
    from kubernetes.config import ConfigException, kube_config

    try:
        merged = kube_config.KubeConfigMerger(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
        found = [each.value for each in merged.config["contexts"]] if merged.config else []
    except (*_DAMAGED, ConfigException):
        return []
    found.sort(key=lambda each: (each.get("context") or {}).get("namespace") != namespace)
    return [str(each["name"]) for each in found]


def _loader(context: str | None) -> Any:
    """Return the official client's loader of a context of the kubeconfig; None: the current one."""
    from kubernetes.config import ConfigException, kube_config

    merged = kube_config.KubeConfigMerger(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
    if merged.config is None:
        raise ConfigException("the kubeconfig is empty")
    return kube_config.KubeConfigLoader(
        config_dict=merged.config,
        config_base_path=None,
        active_context=context,
        config_persister=merged.save_changes,
    )


def _has_kubeconfig() -> bool:
    places = os.environ.get("KUBECONFIG", os.path.expanduser("~/.kube/config"))
    return any(os.path.exists(place) for place in places.split(os.pathsep) if place)
