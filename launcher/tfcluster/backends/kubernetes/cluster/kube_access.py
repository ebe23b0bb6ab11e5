"""The cluster that a spec, a run or a pod means: found in the kubeconfig, or around this pod.

The official client's import takes a fifth of a second, of each command and on each start's way to
its pods. So it reads only contexts that need more than what the kubeconfig holds itself.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import itertools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

import yaml

from tfcluster.agent.error_text import describe_error
from tfcluster.backends.kubernetes.cluster.kube_client import Access, Cluster, KubeError
from tfcluster.errors import SetupError

if TYPE_CHECKING:
    import urllib3

JOB_VARIABLE: Final = "TFCLUSTER_KUBERNETES_JOB"
"""Set in the coordinator's pod: the name of its Job."""
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_DAMAGED: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError)
"""The errors for a kubeconfig that cannot be read."""
_CONNECTIONS: Final = 10
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN_CLUSTER: Final = frozenset(
    {
        *("server", "certificate-authority", "certificate-authority-data"),
        *("insecure-skip-tls-verify", "extensions"),
    }
)
_PLAIN_USER: Final = frozenset(
    {
        *("client-certificate", "client-certificate-data", "client-key", "client-key-data"),
        *("token", "tokenFile"),
    }
)
_FILES: Final = frozenset({"certificate-authority", "client-certificate", "client-key"})
_NAME: Final = re.compile(r"(.+)/([^/ ]+?)(?: \(context (.+)\))?")
"""The form of `Cluster.name`."""


class Settings(Protocol):
    """The fields of the spec's section `runtime.kubernetes` that lead to a cluster."""

    @property
    def context(self) -> str | None: ...
    @property
    def namespace(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class PlainAccess:
    """The cluster of a context that signs in with certificates or a token, as kubeadm, kind, k3s
    and minikube write it (kubernetes.io/docs/reference/config-api/kubeconfig.v1)."""

    context: str
    namespace: str | None
    host: str
    pool: urllib3.PoolManager
    _user: Mapping[str, str] = field(repr=False)
    _folder: Path
    """The folder that the kubeconfig's relative paths start from."""

    @classmethod
    def read(cls, context: str | None) -> PlainAccess | None:
        """Return the access of a context, of the current one without a name.

        None for what the official client is to read: several files, sign-in by programs or
        providers, proxies, certificates of which only some are files; and for what is damaged, of
        which it says what is wrong.
        """
        try:
            (path,) = (each for each in _kubeconfigs() if os.path.exists(each))
            if not (os.path.isfile(path) and _has_no_proxy()):  # a pipe can be read only once
                return None
            file = os.stat(path)
            version = file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns
            if (found := _read_plain(os.path.abspath(path), context, version)) is None:
                return None
            found.headers()
        except (*_DAMAGED, KubeError):
            return None
        return found

    def headers(self) -> dict[str, str]:
        token = self._user.get("token")
        if not token and (file := self._user.get("tokenFile")):
            try:
                token = (self._folder / file).read_text().strip()
            except (OSError, ValueError) as error:
                raise KubeError(f"the token of the kubeconfig: {describe_error(error)}") from None
        return {"authorization": f"Bearer {token}"} if token else {}


@functools.lru_cache(maxsize=8)
def _read_plain(
    path: str, context: str | None, version: tuple[int, int, int, int]
) -> PlainAccess | None:
    """Return the access of a context in the kubeconfig at `path`; None for what `read` leaves.

    All callers share its connections, until the file is another `version`. Raises one of
    `_DAMAGED`.
    """
    config = yaml.load(Path(path).read_bytes(), Loader=_LOADER)
    name = context or config["current-context"]
    chosen = _named(config, "context", name)
    cluster, user = (_named(config, kind, chosen[kind]) for kind in ("cluster", "user"))
    if not (cluster.keys() <= _PLAIN_CLUSTER and user.keys() <= _PLAIN_USER):
        return None
    kept = [key for key in (*cluster, *user) if key.endswith("-data")]
    if kept and any(key in _FILES for key in (*cluster, *user)):  # which may be renewed
        return None
    host, folder = cluster["server"].rstrip("/"), Path(path).parent
    pool = _pool(cluster, user, folder)
    return PlainAccess(name, chosen.get("namespace"), host, pool, user, folder)


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """Return the entry of a kubeconfig's list of clusters, users or contexts."""
    found: list[Mapping[str, Any]] = [e[kind] for e in config[f"{kind}s"] if e["name"] == name]
    return found[0]


def _pool(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> urllib3.PoolManager:
    """Return the connections to the server of `cluster`. Raises OSError, ValueError.

    Certificates that are files are read again for each connection, as they may be renewed.
    """
    import ssl

    import urllib3
    from urllib3.util import create_urllib3_context

    tls, options = create_urllib3_context(), dict[str, Any](maxsize=_CONNECTIONS)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        options["cert_reqs"] = ssl.CERT_NONE
    else:
        tls.check_hostname = True
    with tempfile.TemporaryDirectory() as scratch:  # a key can be loaded from a file only

        def file_of(section: Mapping[str, Any], key: str) -> Path | None:
            if (data := section.get(f"{key}-data")) is not None:
                path = Path(scratch, key)
                path.write_bytes(base64.b64decode(data, validate=True))
                return path
            return folder / section[key] if key in section else None

        authority = file_of(cluster, "certificate-authority")
        own, key = file_of(user, "client-certificate"), file_of(user, "client-key")
        if authority is None:
            tls.load_default_certs()
        else:
            tls.load_verify_locations(authority)
        if own is not None:
            tls.load_cert_chain(own, key, password=_refuse_to_ask)
    if any(key.endswith("-data") for key in (*cluster, *user)):
        options["ssl_context"] = tls
    else:
        files = {"ca_certs": authority, "cert_file": own, "key_file": key}
        options |= {name: str(path) for name, path in files.items() if path is not None}
    return urllib3.PoolManager(**options)


def _refuse_to_ask() -> str:
    raise ValueError("the key is encrypted")


def _has_no_proxy() -> bool:
    return not any(name.lower().endswith("_proxy") for name in os.environ)


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


@functools.cache
def _around_pod() -> PodAccess:
    """Return the access that all callers share, with its connections."""
    return PodAccess()


def _forget() -> None:
    """Forget the connections: two processes must not write to one of them."""
    _read_plain.cache_clear()
    _around_pod.cache_clear()


os.register_at_fork(after_in_child=_forget)


def reach(settings: Settings, *, patience_s: float = 10.0) -> Cluster:
    """Return the cluster of `settings`: the pod's own one in a coordinator's pod, else that of the
    kubeconfig's context, else the pod's own one.

    Raises SetupError without the official client, or without a cluster.
    """
    is_around = JOB_VARIABLE in os.environ or not (settings.context or _has_kubeconfig())
    try:
        if is_around:
            around = _around_pod()
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
    found = importlib.util.find_spec("kubernetes")
    if found is None or found.origin is None:  # a folder of that name
        raise SetupError(
            "the backend kubernetes needs Kubernetes' official client",
            fix="install it: `pip install 'tfcluster[kubernetes]'`",
        )
    if (plain := PlainAccess.read(settings.context)) is not None:
        access: Access = plain
        name, own = plain.context, plain.namespace
    else:
        configuration, current = _load(settings.context)
        access, name = ClientAccess(configuration), str(current["name"])
        own = current["context"].get("namespace")
    namespace = settings.namespace or own or "default"
    return Cluster(access, namespace=namespace, patience_s=patience_s, context=name)


def _load(context: str | None) -> tuple[Any, Mapping[str, Any]]:
    """Return the official client's configuration for a context, and the context."""
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        loader = _loader(context)
        loader.load_and_set(configuration)
        return configuration, loader.current_context
    except config.ConfigException as error:
        raise _NoContextError(str(error)) from None


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
    for context in itertools.chain((former,), _context_names(namespace)):
        try:
            wanted = SimpleNamespace(context=context, namespace=namespace)
            found = reach(wanted, patience_s=patience_s)
        except SetupError as error:  # a context that is broken hides no other
            why = error.message
            continue
        if found.host == host:
            return found
    raise SetupError(why)


def _context_names(namespace: str | None) -> Iterator[str]:
    """Yield the contexts of the kubeconfig, those with this namespace first."""
    from kubernetes.config import ConfigException, kube_config

    try:
        merged = kube_config.KubeConfigMerger(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
        found = [each.value for each in merged.config["contexts"]] if merged.config else []
    except (*_DAMAGED, ConfigException):
        return
    found.sort(key=lambda each: (each.get("context") or {}).get("namespace") != namespace)
    for each in found:
        yield str(each["name"])


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
    return any(map(os.path.exists, _kubeconfigs()))


def _kubeconfigs() -> list[str]:
    """Return the places of kubeconfigs (kubernetes.io: Organizing Cluster Access)."""
    places = os.environ.get("KUBECONFIG", os.path.expanduser("~/.kube/config"))
    return [place for place in places.split(os.pathsep) if place]
