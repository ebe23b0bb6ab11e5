"""A Kubernetes cluster: found in the kubeconfig or around this pod, asked for plain JSON objects.

The official client reads the kubeconfig (contexts, certificates, programs that sign in, proxies)
and lends its connections. Its typed models are not used: what is sent is exactly what `tfcluster
export` prints, and an answer is a dict. Around a pod it is not even imported, which takes a third
of a second on each start's way to its pods.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar
from urllib.parse import quote, urlencode

import yaml

from tfcluster.agent import foreign_json
from tfcluster.errors import SetupError, require_extra

if TYPE_CHECKING:
    import urllib3

Object = dict[str, Any]
"""An object of the API, as its JSON."""

JOB_VARIABLE: Final = "TFCLUSTER_KUBERNETES_JOB"
"""Set in the coordinator's pod: the name of its Job."""
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DAMAGED: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError)
"""The errors for a kubeconfig that cannot be read."""
_READ_AGAIN_S: Final = 300.0
"""Seconds after which a kubeconfig is read again: a token in a file may have been renewed."""
_NAME: Final = re.compile(r"(.+)/([^/ ]+?)(?: \(context (.+)\))?")
"""The form of `KubeCluster.name`."""

_GROUPS = {
    "apps": "apps/v1",
    "authorization": "authorization.k8s.io/v1",
    "batch": "batch/v1",
    "networking": "networking.k8s.io/v1",
    "rbac": "rbac.authorization.k8s.io/v1",
}
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_PAGE = 500
_PAUSE_S = 0.3
_TRY_S = 10.0
"""Seconds that one try of a request may take."""
_AWAY = {429, 500, 502, 503, 504}
"""Answers of an API server that starts, ends, is overloaded or has lost its etcd."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Settings(Protocol):
    """The fields of the spec's section `runtime.kubernetes` that lead to a cluster."""

    @property
    def context(self) -> str | None: ...
    @property
    def namespace(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Access:
    """An API server, and how to sign in there."""

    host: str
    """``https://HOST:PORT``."""
    pool: urllib3.PoolManager
    headers: Callable[[], dict[str, str]]
    """Returns the headers that sign in now."""
    namespace: str
    """The namespace of the context, or of the pod."""
    context: str | None = None
    """The kubeconfig's context that leads here; None around a pod."""


def reach(settings: Settings, *, patience_s: float = 10.0) -> KubeCluster:
    """Return the cluster of `settings`: the pod's own one in a coordinator's pod, else that of the
    kubeconfig's context, else the pod's own one.

    Raises SetupError without the extra packages, or without a cluster.
    """
    require_extra("kubernetes", "urllib3", "websocket")
    places = _places()
    files = [path for path in places.split(os.pathsep) if path and os.path.exists(path)]
    is_around = JOB_VARIABLE in os.environ or not (settings.context or files)
    try:
        if is_around:
            access = _around_pod()
        else:
            versions = tuple(os.stat(path).st_mtime_ns for path in files)
            period = int(time.monotonic() / _READ_AGAIN_S)
            access = _of_context(settings.context, places, versions, period)
    except (*_DAMAGED, _NoContextError) as error:
        where = f"context {settings.context}" if settings.context else "cluster"
        why = "no kubeconfig, and this is no pod" if is_around else str(error)
        raise SetupError(
            f"there is no Kubernetes {where} to use: {why}",
            fix="`kubectl config get-contexts` lists those of the kubeconfig (KUBECONFIG, else"
            " ~/.kube/config); runtime.kubernetes.context chooses one",
        ) from None
    return KubeCluster(
        access, namespace=settings.namespace or access.namespace, patience_s=patience_s
    )


class _NoContextError(Exception):
    """The kubeconfig has no such context, or none that can be used."""


@functools.lru_cache(maxsize=8)
def _of_context(context: str | None, places: str, versions: tuple[int, ...], period: int) -> Access:
    """Return the access that all callers share, with its connections, until its files change."""
    require_extra("kubernetes", "kubernetes")
    from kubernetes.client import Configuration
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.config import ConfigException, kube_config

    configuration = Configuration()
    try:
        kube_config.load_kube_config(places, context, configuration)
        merged = kube_config.KubeConfigMerger(places).config
        name = context or merged["current-context"]
        chosen = merged["contexts"].get_with_name(name).value["context"]
    except ConfigException as error:
        raise _NoContextError(str(error)) from None

    def headers() -> dict[str, str]:
        settings = configuration.auth_settings().values()  # the client renews what ends
        return {each["key"]: each["value"] for each in settings if each["in"] == "header"}

    return Access(
        host=str(configuration.host).rstrip("/"),
        pool=RESTClientObject(configuration).pool_manager,
        headers=headers,
        namespace=chosen.get("namespace") or "default",
        context=str(name),
    )


@functools.cache
def _around_pod() -> Access:
    """Return the access by the token of this pod's ServiceAccount, which the kubelet renews.

    The rules are those of client-go (rest/config.go: InClusterConfig). Raises KeyError and OSError
    outside of a pod.
    """
    import urllib3

    host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))

    def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {(_SERVICE_ACCOUNT / 'token').read_text().strip()}"}

    return Access(
        host=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        pool=urllib3.PoolManager(ca_certs=str(_SERVICE_ACCOUNT / "ca.crt")),
        headers=headers,
        namespace=(_SERVICE_ACCOUNT / "namespace").read_text().strip(),
    )


def _forget() -> None:
    """Forget the connections: two processes must not write to one of them."""
    _of_context.cache_clear()
    _around_pod.cache_clear()


os.register_at_fork(after_in_child=_forget)


def reach_again(name: str, *, patience_s: float) -> KubeCluster:
    """Return the cluster that was called `name` (`KubeCluster.name`).

    If its context does not lead there any more, any other context that does is used. Raises
    SetupError where none does.
    """
    match = _NAME.fullmatch(name)
    host, namespace, former = match.groups() if match else (name, None, None)
    if JOB_VARIABLE in os.environ:
        return reach(SimpleNamespace(context=None, namespace=namespace), patience_s=patience_s)
    require_extra("kubernetes", "kubernetes", "urllib3", "websocket")
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
        merged = kube_config.KubeConfigMerger(_places()).config
        found = [each.value for each in merged["contexts"]]
    except (*_DAMAGED, ConfigException):
        return
    found.sort(key=lambda each: (each.get("context") or {}).get("namespace") != namespace)
    for each in found:
        yield str(each["name"])


def _places() -> str:
    """Return the places of kubeconfigs (kubernetes.io: Organizing Cluster Access)."""
    return os.environ.get("KUBECONFIG", os.path.expanduser("~/.kube/config"))


class KubeError(SetupError):
    """The API server refused a request."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.status = status
        """The HTTP status; 0 without an answer."""
        self.reason = reason
        """The word of the API for it ("Forbidden", "AlreadyExists"), or "Quota"."""

    @property
    def is_absence(self) -> bool:
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """Return whether the object exists already, or is another one than expected."""
        return self.status == 409


class KubeSilentError(KubeError):
    """The API server did not answer in time: what the request did is not known."""


class KubeCluster:
    """One namespace of a cluster.

    A path is relative to the namespace (``pods``, ``pods/NAME``, ``batch/jobs/NAME``,
    ``networking/networkpolicies``) or, with a leading ``/``, absolute. All methods block.
    """

    def __init__(self, access: Access, *, namespace: str, patience_s: float) -> None:
        self.namespace = namespace
        self.access = access
        self.patience_s = patience_s
        """Seconds for which an API server that is away is asked again."""
        self.fence: Callable[[], None] = lambda: None
        """Called before each change of an object; it does not return where none may be made."""

    @property
    def host(self) -> str:
        return self.access.host

    @property
    def name(self) -> str:
        """The name of cluster, namespace and user for the list of jobs (`reach_again`).

        Contexts of several users, or clusters behind one gateway, have the same host.
        """
        context = f" (context {self.access.context})" if self.access.context else ""
        return f"{self.host}/{self.namespace}{context}"

    def get(self, path: str, **query: object) -> Object:
        """Return one object."""
        return self._json("GET", path, query=query)

    def find(self, path: str) -> Object | None:
        """Return one object, or None if it does not exist."""
        try:
            return self.get(path)
        except KubeError as error:
            if error.is_absence:
                return None
            raise

    def list(
        self, path: str, *, labels: Mapping[str, str] | None = None, **query: object
    ) -> list[Object]:
        """Return all objects that have `labels`."""
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
        items: list[Object] = []
        query["limit"] = _PAGE
        while True:
            page = self._json("GET", path, query=query)
            items += page.get("items") or ()
            query["continue"] = page["metadata"].get("continue")
            if not query["continue"]:
                return items

    def create(self, path: str, body: Object) -> Object:
        """Create an object. `path`: its collection, without its name."""
        self.fence()
        return self._json("POST", path, body=body, what=_called(path, body))

    def patch(self, path: str, body: Object) -> Object:
        """Merge `body` into an object (JSON merge patch: None removes a field).

        With a resourceVersion in `body`: only into that version of it (KubeError, conflict).
        """
        self.fence()
        return self._json("PATCH", path, body=body)

    def delete(
        self,
        path: str,
        *,
        grace_s: int | None = None,
        background: bool = True,
        uid: str | None = None,
    ) -> None:
        """Delete an object; one that does not exist is no error.

        background: what it owns is deleted after it; otherwise before it.
        uid: delete only this object, not another one of the same name (KubeError, conflict).
        """
        self.fence()
        options: Object = {"propagationPolicy": "Background" if background else "Foreground"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self._json("DELETE", path, body=options)
        except KubeError as error:
            if not error.is_absence:
                raise

    def url(self, path: str) -> str:
        """Return the path of a request."""
        if path.startswith("/"):
            return path
        group, _, rest = path.partition("/")
        if group in _GROUPS:
            return f"/apis/{_GROUPS[group]}/namespaces/{self.namespace}/{quote(rest)}"
        return f"/api/v1/namespaces/{self.namespace}/{quote(path)}"

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Object | None = None,
        what: str = "",
    ) -> Object:
        answer = self._ask(method, path, query=query, body=body, what=what)
        try:
            parsed: Object = foreign_json.parse_json(answer) if answer else {}
        except ValueError:
            raise KubeError(
                f"{self.host} does not answer as a Kubernetes API server does:"
                f" {_status(answer)['message']}",
                fix="does a proxy answer in its place? See the cluster's server in the kubeconfig",
            ) from None
        return parsed

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Object | None = None,
        what: str = "",
    ) -> bytes:
        """Send a request until it is answered, or `patience_s` is over.

        Only a request that may be repeated is sent again once it may have arrived.
        """
        target = self.host + self.url(path)
        if query:
            target += "?" + urlencode(query)
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                status, answer = self._send(method, target, body)
                problem = _status(answer)
                silence = f"HTTP {status}: {problem.get('message', '')}".rstrip(": ")
                may_repeat = method != "POST" or status in (409, 429)
            except _Unanswered as error:
                status, answer, silence = 0, b"", str(error)
                may_repeat = method != "POST" or error.was_not_sent
            if 200 <= status < 300:
                return answer
            if status and not _is_away(status, problem, body):
                raise _refusal(self, method, what or path, status, _status(answer))
            if not may_repeat or time.monotonic() > deadline:
                raise KubeSilentError(
                    f"the Kubernetes API server {self.host} does not answer ({silence})",
                    status=status,
                    fix="is it up, and does this machine reach it? `kubectl cluster-info` asks it",
                )
            time.sleep(_PAUSE_S)

    def _send(self, method: str, target: str, body: Object | None) -> tuple[int, bytes]:
        import ssl

        import urllib3

        kinds = {"PATCH": "application/merge-patch+json"}
        headers = {
            **self.access.headers(),
            "Accept": "application/json, */*",
            "Content-Type": kinds.get(method, "application/json"),
        }
        try:
            response = self.access.pool.request(
                method,
                target,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=min(_TRY_S, self.patience_s + 1), read=_TRY_S),
                retries=False,
            )
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as e:
            raise _Unanswered(_plain(e), was_not_sent=True) from None
        except urllib3.exceptions.SSLError as error:
            if not isinstance(cause := error.args[0], ssl.SSLCertVerificationError):
                # What accepts and closes is a load balancer without servers. An end after the
                # handshake is no SSLEOFError: Python's TLS reads it as the end of the stream.
                was_not_sent = isinstance(cause, ssl.SSLEOFError)
                raise _Unanswered(str(error), was_not_sent=was_not_sent) from None
            raise KubeError(
                f"no trusted connection to the Kubernetes API server {self.host}: {error}",
                fix="check certificate-authority and server of the kubeconfig's cluster",
            ) from None
        except urllib3.exceptions.HTTPError as error:
            raise _Unanswered(_plain(error)) from None
        return response.status, response.data


class _Unanswered(Exception):
    """A request without an answer."""

    def __init__(self, message: str, *, was_not_sent: bool = False) -> None:
        super().__init__(message)
        self.was_not_sent = was_not_sent


async def in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a blocking method of a cluster without blocking the event loop."""
    import asyncio  # a submission does without

    return await asyncio.to_thread(function, *args, **kwargs)


async def to_the_end(request: Awaitable[_T]) -> _T:
    """Return what a request returns; also a cancelled caller waits for its answer.

    The thread of a request cannot be stopped: the object would be made after the end.
    """
    import asyncio

    task = asyncio.ensure_future(request)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _called(path: str, body: Object) -> str:
    name = body.get("metadata", {}).get("name", "")
    return f"{path}/{name}" if name else path


def _is_away(status: int, problem: Object, body: Object | None) -> bool:
    """Return whether the same request may be answered later.

    500 also says that a webhook of the cluster does not answer, and 409 that a quota's object has
    changed meanwhile (apiserver/pkg/admission/plugin/resourcequota, webhook/errors).
    """
    message = str(problem.get("message", ""))
    if status == 409:
        is_for_version = "resourceVersion" in (body or {}).get("metadata", {})
        return "the object has been modified" in message and not is_for_version
    return status in _AWAY and "failed calling webhook" not in message


def _plain(error: Exception) -> str:
    """Return urllib3's message without the object it is about, the same for each try."""
    text = re.sub(r"^HTTPS?ConnectionPool\(.*?\): |\. \(read timeout=.*\)$", "", str(error))
    return text.rpartition(">: ")[2] or type(error).__name__


def _status(answer: bytes) -> Object:
    """Return the API's `Status` object in an answer; a proxy's answer has none."""
    try:
        status = foreign_json.parse_json(answer)
    except ValueError:
        return {"message": answer.decode(errors="replace").strip()[:300]}
    return status if isinstance(status, dict) else {}


def _refusal(
    cluster: KubeCluster, method: str, what: str, status: int, answer: Object
) -> KubeError:
    """Return the error for an answer, in words a user of tfcluster can act on."""
    message, reason = (str(answer.get(key, "")) for key in ("message", "reason"))
    verb, namespace, fix = _VERBS[method], cluster.namespace, ""
    subject = "Kubernetes cannot"
    if status == 401:
        fix = "sign in again; `kubectl auth whoami` shows the user of the kubeconfig's context"
    elif "exceeded quota" in message:
        reason = "Quota"
        fix = f"ask for less, or wait: `kubectl describe quota -n {namespace}` shows what is used"
    elif status == 403 and " cannot " in message:
        group, _, rest = what.partition("/")
        kind, _, name = (rest if group in _GROUPS else what).partition("/")
        verb = "list" if method == "GET" and not name else verb
        subject = "this user may not"
        fix = (
            f"`kubectl auth can-i {verb} {kind or what} -n {namespace}` checks it; a Role and a"
            " RoleBinding of the namespace allow it"
        )
    elif status == 422:
        fix = "correct the field of runtime.kubernetes that the message names"
    text = f"{subject} {verb} {what} in the namespace {namespace}"
    why = message or f"HTTP {status}"
    return KubeError(f"{text}: {why}", status=status, reason=reason, fix=fix)
