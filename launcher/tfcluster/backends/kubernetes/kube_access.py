"""The cluster that a spec, a run or a pod means: found in the kubeconfig, or around this pod.

The official client reads the kubeconfig and signs in (exec plugins, service accounts).
"""

from __future__ import annotations

import os
import re
from types import SimpleNamespace
from typing import Any, Final, Protocol

import yaml

from tfcluster.backends.kubernetes.kube_client import Cluster
from tfcluster.errors import SetupError

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


def reach(settings: Settings, *, patience_s: float = 10.0) -> Cluster:
    """Return the cluster of `settings`: the pod's own one in a coordinator's pod, else that of the
    kubeconfig's context, else the pod's own one.

    Raises SetupError without the official client, or without a cluster.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise SetupError(
            "the backend kubernetes needs Kubernetes' official client",
            fix="install it: `pip install 'tfcluster[kubernetes]'`",
        ) from None
    configuration = client.Configuration()
    try:
        if JOB_VARIABLE in os.environ or not (settings.context or _has_kubeconfig()):
            config.load_incluster_config(client_configuration=configuration)
            context, context_namespace = None, _pod_namespace()
        else:
            loader = _loader(settings.context)
            loader.load_and_set(configuration)
            context = str(loader.current_context["name"])
            context_namespace = loader.current_context["context"].get("namespace")
    except (*_DAMAGED, config.ConfigException) as error:
        where = f"context {settings.context}" if settings.context else "cluster"
        raise SetupError(
            f"there is no Kubernetes {where} to use: {error}",
            fix="`kubectl config get-contexts` lists those of the kubeconfig (KUBECONFIG, else"
            " ~/.kube/config); runtime.kubernetes.context chooses one",
        ) from None
    namespace = settings.namespace or context_namespace or "default"
    api = client.ApiClient(configuration)
    return Cluster(api, namespace=namespace, patience_s=patience_s, context=context)


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


def _pod_namespace() -> str | None:
    try:
        with open(f"{_SERVICE_ACCOUNT}/namespace", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None
