"""Checks of a run before its pods are made: cluster, rights and named objects.

Kubernetes accepts pods that can never start, and a Secret that is missing shows only on a node.
What this user may not read is not checked, which is no obstacle, but is said. Whether pods fit the
quota and the nodes, a volume can be made and the registry takes a secret is for the cluster to say
(`reasons`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tfcluster.backends.jobs import Obstacle, Outlook, Submission
from tfcluster.backends.kubernetes import run_objects
from tfcluster.backends.kubernetes.kube_client import KubeCluster, KubeError, Object, reach
from tfcluster.errors import SetupError, join_first

if TYPE_CHECKING:
    from tfcluster.spec.kubernetes import Kubernetes

OLDEST = (1, 20)
"""The oldest server that tfcluster was tried with."""
_PATIENCE_S = 5.0
_ASKERS = 8

_PORT_FORWARD = (("", "pods/portforward", "get create"),)
"""The client asks with GET, newer ones than ours with POST."""
RIGHTS: tuple[tuple[str, str, str], ...] = (
    ("", "pods", "get list delete"),
    *_PORT_FORWARD,
    ("", "secrets", "create get"),
    ("", "services", "create"),
    ("", "serviceaccounts", "get"),
    ("", "events", "list"),
    ("batch", "jobs", "create get list patch delete"),
    ("apps", "statefulsets", "create list delete"),
    ("networking.k8s.io", "networkpolicies", "create"),
)
"""API group, resource and verbs that the user needs who starts runs."""
SETUP_RIGHTS: tuple[tuple[str, str, str], ...] = (
    ("", "serviceaccounts", "create"),
    ("rbac.authorization.k8s.io", "roles", "create"),
    ("rbac.authorization.k8s.io", "rolebindings", "create"),
)
"""The rights of a user who makes the coordinator's ServiceAccount where it is missing."""
_GANGS = {
    "kueue": ("kueue.x-k8s.io", "Kueue"),
    "volcano": ("scheduling.volcano.sh", "Volcano"),
    "coscheduling": ("scheduling.x-k8s.io", "the scheduler plugin coscheduling"),
}
"""Value of `gang` → API group, and name."""
_POD_GROUP_GANGS = ("volcano", "coscheduling")
_KINDS = {
    "serviceaccounts": "ServiceAccount",
    "secrets": "Secret",
    "configmaps": "ConfigMap",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "priorityclasses": "PriorityClass",
}
_SCHEDULING = "/apis/scheduling.k8s.io/v1/priorityclasses"


def check(job: Submission, *, thorough: bool) -> Outlook:
    """Compare the run with the cluster; see `backends.jobs.Jobs.check`."""
    settings = job.runtime.kubernetes
    assert settings is not None
    try:
        cluster = reach(settings, patience_s=_PATIENCE_S)
        survey = Survey(cluster, settings, tasks=job.nodes)
        version = cluster.get("/version")
        found = [*_judge_version(version), *survey.check_objects(), *survey.check_gang()]
        if thorough:
            found += survey.check_rights()
        else:  # what would fail only later, when the run's files are copied
            found += survey.check_rights_of_user(_PORT_FORWARD)
    except SetupError as error:
        return Outlook((Obstacle("cluster", error.message, error.fix),))
    if survey.unread:
        what = f"this user may not read {join_first(sorted(survey.unread), 12)}: not checked"
        found.append(Obstacle("permissions", what, "", is_fatal=False))
    about = f"Kubernetes {version.get('gitVersion')} at {cluster.name}"
    return Outlook(tuple(found), f"{about}; `--deep` tries the image")


def _judge_version(version: Object) -> Iterator[Obstacle]:
    numbers = [str(version.get(key, "")).rstrip("+") for key in ("major", "minor")]
    if all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) < OLDEST:
        what = f"the server is Kubernetes {'.'.join(numbers)}; tfcluster was tried with 1.20 on"
        yield Obstacle("cluster", what, "use a newer cluster", is_fatal=False)


class Survey:
    """The questions to one cluster about one run, and what could not be read."""

    def __init__(self, cluster: KubeCluster, settings: Kubernetes, *, tasks: int) -> None:
        self.cluster, self.settings, self.tasks = cluster, settings, tasks
        self.unread: set[str] = set()
        """The kinds of objects that this user may not read."""

    def _find(self, path: str) -> Object | bool:
        """Return an object, False where there is none, True where it may not be read."""
        try:
            return found if (found := self.cluster.find(path)) is not None else False
        except KubeError as error:
            if error.status != 403:
                raise
            if not path.startswith("/api/v1/namespaces/"):  # the rights in it say enough
                self.unread.add(path.split("/")[-2])
            return True

    # ── Objects that the spec names ──

    def check_objects(self) -> Iterator[Obstacle]:
        """Check that what the spec names exists, and that claims serve all nodes."""
        namespace = self.cluster.namespace
        if self._find(f"/api/v1/namespaces/{namespace}") is False:
            fix = f"`kubectl create namespace {namespace}`, or correct runtime.kubernetes.namespace"
            yield Obstacle("cluster", f"there is no namespace {namespace}", fix)
            return
        for path, where in dict(self._named()).items():
            found = self._find(path)
            kind, name = path.split("/")[-2:]
            if found is False:
                what = f"there is no {_KINDS[kind]} {name} in the namespace {namespace} ({where})"
                if path.startswith("/"):
                    what = f"there is no {_KINDS[kind]} {name} in the cluster ({where})"
                fix = f"create it, or correct the spec: `kubectl get {kind} -n {namespace}`"
                yield Obstacle("objects", what, fix)
            elif isinstance(found, dict) and kind == "persistentvolumeclaims":
                yield from self._judge_claim(found)

    def _named(self) -> Iterator[tuple[str, str]]:
        """Yield the path of each object that the spec names, and the field that does."""
        spec = self.settings
        if spec.service_account:
            yield f"serviceaccounts/{spec.service_account}", "service_account"
        if own := spec.coordinator.service_account:
            yield f"serviceaccounts/{own}", "coordinator.service_account"
        for name in spec.image_pull_secrets:
            yield f"secrets/{name}", "image_pull_secrets"
        sources = [("env_from", each.secret, each.config_map) for each in spec.env_from]
        sources += [("volumes", each.secret, each.config_map) for each in spec.volumes]
        for where, secret, config_map in sources:
            if secret:
                yield f"secrets/{secret}", where
            if config_map:
                yield f"configmaps/{config_map}", where
        for volume in spec.volumes:
            if volume.claim:
                yield f"persistentvolumeclaims/{volume.claim}", "volumes"
        if spec.run_volume:
            yield f"persistentvolumeclaims/{spec.run_volume}", "run_volume"
        if spec.priority_class:
            yield f"{_SCHEDULING}/{spec.priority_class}", "priority_class"

    def _judge_claim(self, claim: Object) -> Iterator[Obstacle]:
        name, spec = claim["metadata"]["name"], claim["spec"]
        modes = set(spec.get("accessModes") or ())
        used_by = [volume for volume in self.settings.volumes if volume.claim == name]
        if used_by and self.tasks > 1 and not modes & {"ReadWriteMany", "ReadOnlyMany"}:
            what = f"the claim {name} ({', '.join(sorted(modes))}) serves one node at a time"
            fix = "use a claim with ReadWriteMany, or keep all tasks on one node by affinity"
            yield Obstacle("volumes", what, fix, is_fatal=False)
        elif modes == {"ReadOnlyMany"} and not all(volume.read_only for volume in used_by):
            what = f"the claim {name} can only be read (ReadOnlyMany)"
            yield Obstacle("volumes", what, "set `read_only` of the volume", is_fatal=False)

    # ── Gang scheduler ──

    def check_gang(self) -> Iterator[Obstacle]:
        """Check that the gang scheduler and the queue that the spec names exist."""
        if self.settings.gang not in _GANGS:
            return
        group, name = _GANGS[self.settings.gang]
        found = self._find(f"/apis/{group}")
        if found is False:
            what = f"gang is {self.settings.gang}, but {name} is not installed in the cluster"
            yield Obstacle("gang", what, 'have it installed, or set gang to "none"')
        elif isinstance(found, dict) and (queue := self.settings.queue):
            yield from self._check_queue(
                f"/apis/{found['preferredVersion']['groupVersion']}", queue
            )

    def _check_queue(self, api: str, queue: str) -> Iterator[Obstacle]:
        """Check the queue of Kueue, which is one of the namespace, or of Volcano."""
        namespace = self.cluster.namespace
        kind, path, where = "Queue", "queues", "the cluster"
        fix = "`kubectl get queues.scheduling.volcano.sh` lists them"
        if self.settings.gang == "kueue":
            kind, path, where = "LocalQueue", f"namespaces/{namespace}/localqueues", namespace
            fix = f"`kubectl get localqueues -n {namespace}` lists them"
        if self._find(f"{api}/{path}/{queue}") is False:
            yield Obstacle("gang", f"there is no {kind} {queue} in {where}", fix)

    # ── Rights ──

    def check_rights(self) -> Iterator[Obstacle]:
        """Check each verb that this user and the coordinator's account need."""
        namespace, gang = self.cluster.namespace, self.settings.gang
        named = self.settings.coordinator.service_account
        account = named or run_objects.ACCOUNT
        groups = _GANGS[gang][:1] if gang in _POD_GROUP_GANGS else ()
        of_gang = [(group, "podgroups", "create") for group in groups]
        yield from self.check_rights_of_user([*RIGHTS, *of_gang])
        is_there = self._find(f"serviceaccounts/{account}") is not False
        if is_there and (missing := self._missing(_coordinator_rights(), account=account)):
            what = f"the ServiceAccount {account} may not {join_first(missing, 6)} in {namespace}"
            yield Obstacle("permissions", what, "bind it to a Role with these verbs")
        elif not (is_there or named) and (missing := self._missing(SETUP_RIGHTS)):
            what = f"there is no ServiceAccount {account} for the coordinator in {namespace}"
            what += f", and this user may not {join_first(missing)}"
            fix = "have an administrator apply the account, its Role and RoleBinding: "
            where = "`tfcluster up SPEC` prints them, and `tfcluster help kubernetes#rights`"
            yield Obstacle("permissions", what, fix + where)

    def check_rights_of_user(self, rights: Iterable[tuple[str, str, str]]) -> Iterator[Obstacle]:
        """Check verbs that this user needs."""
        namespace = self.cluster.namespace
        if missing := self._missing(rights):
            what = f"this user may not {join_first(missing, 6)} in the namespace {namespace}"
            fix = f"`kubectl auth can-i --list -n {namespace}` shows the rights; a Role gives them"
            yield Obstacle("permissions", what, fix)

    def _missing(
        self, rights: Iterable[tuple[str, str, str]], *, account: str | None = None
    ) -> list[str]:
        """Return the rights that this user, or a ServiceAccount, does not have."""
        wanted = [(g, resource, verb) for g, resource, verbs in rights for verb in verbs.split()]
        with ThreadPoolExecutor(_ASKERS) as pool:
            allowed = list(pool.map(lambda right: self._may(*right, account=account), wanted))
        pairs = zip(wanted, allowed, strict=True)
        return [f"{verb} {resource}" for (_, resource, verb), may in pairs if not may]

    def _may(self, group: str, resource: str, verb: str, *, account: str | None) -> bool:
        name, _, subresource = resource.partition("/")
        asked: dict[str, Any] = {"namespace": self.cluster.namespace, "verb": verb}
        asked |= {"group": group, "resource": name, "subresource": subresource}
        spec: dict[str, Any] = {"resourceAttributes": asked}
        kind, path = "SelfSubjectAccessReview", "/apis/authorization.k8s.io/v1/selfsubject"
        body: Object = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        path += "accessreviews"
        if account is not None:
            spec["user"] = f"system:serviceaccount:{self.cluster.namespace}:{account}"
            spec["groups"] = [
                "system:serviceaccounts",
                f"system:serviceaccounts:{self.cluster.namespace}",
                "system:authenticated",
            ]
            body |= {"kind": "LocalSubjectAccessReview"}
            body |= {"metadata": {"namespace": self.cluster.namespace}}
            path = "authorization/localsubjectaccessreviews"
        try:
            return bool(self.cluster.create(path, body)["status"].get("allowed"))
        except KubeError as error:
            if error.status != 403:
                raise
            self.unread.add("the rights of the coordinator's account")
            return True


def _coordinator_rights() -> Iterator[tuple[str, str, str]]:
    role = next(each for each in run_objects.account_objects() if each["kind"] == "Role")
    for rule in role["rules"]:
        for resource in rule["resources"]:
            yield rule["apiGroups"][0], resource, " ".join(rule["verbs"])
