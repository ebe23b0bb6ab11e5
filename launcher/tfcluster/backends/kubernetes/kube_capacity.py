"""Compares the pods of a run with quotas, limit ranges and nodes, as the scheduler would (pure).

The scheduler and the quota's admission have the last word; this is their arithmetic as far as a
user can read its inputs (pkg/scheduler/framework/plugins: noderesources, nodeaffinity,
tainttoleration; pkg/quota/v1/evaluator/core/pods.go).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Object = Mapping[str, Any]
Amounts = Mapping[str, float]
_COMPUTE = ("cpu", "memory")
_NATIVE = (*_COMPUTE, "ephemeral-storage")
_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0} | {
    unit: base**power
    for base, units in ((1000.0, "k M G T P E"), (1024.0, "Ki Mi Gi Ti Pi Ei"))
    for power, unit in enumerate(units.split(), 1)
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """The resources of one pod, and the nodes that it may use."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Object] = ()
    affinity: Object = field(default_factory=dict)
    priority_class: str | None = None
    has_deadline: bool = False
    """A pod with activeDeadlineSeconds is `Terminating` for a quota."""


def needs(requests: Mapping[str, str], limits: Mapping[str, str], **nodes: Any) -> PodNeeds:
    """Return the needs of a pod; a limit without a request is the request, as the server does."""
    most = parse_amounts(limits)
    return PodNeeds(most | parse_amounts(requests), most, **nodes)


def with_defaults(pod: PodNeeds, ranges: Iterable[Object]) -> PodNeeds:
    """Return the needs with the defaults of the namespace's LimitRanges."""
    limits, requests = dict(pod.limits), dict(pod.requests)
    for rule in _container_rules(ranges):
        for name, value in parse_amounts(rule.get("default")).items():
            limits.setdefault(name, value)
        for name, value in parse_amounts(rule.get("defaultRequest")).items():
            requests.setdefault(name, value)
    return replace(pod, requests=limits | requests, limits=limits)


def beyond_ranges(pod: PodNeeds, ranges: Iterable[Object]) -> Iterator[str]:
    """Yield what the namespace's LimitRanges do not allow."""
    for rule in _container_rules(ranges):
        for name, most in parse_amounts(rule.get("max")).items():
            asked = pod.limits.get(name)
            if asked is None or asked > most:
                wants = "no limit" if asked is None else show(name, asked)
                yield f"{name}: {wants}, allowed are at most {show(name, most)}"
        for name, least in parse_amounts(rule.get("min")).items():
            if (asked := pod.requests.get(name, 0.0)) < least:
                shown = show(name, asked), show(name, least)
                yield f"{name}: {shown[0]}, demanded are at least {shown[1]}"


def _container_rules(ranges: Iterable[Object]) -> Iterator[Object]:
    for each in ranges:
        for rule in each["spec"].get("limits") or ():
            if rule.get("type") in ("Container", "Pod"):
                yield rule


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a quota has too little."""

    quota: str
    resource: str
    asked: float
    used: float
    allowed: float

    @property
    def is_final(self) -> bool:
        """Return whether the request alone is larger than the quota."""
        return self.asked > self.allowed

    def __str__(self) -> str:
        shown = (show(self.resource, n) for n in (self.asked, self.used, self.allowed))
        return "{}: {} asked, {} of {} used".format(self.resource, *shown)


def shortages(pods: Sequence[PodNeeds], quotas: Iterable[Object]) -> Iterator[Shortage]:
    """Yield the resources of which `pods` together ask for more than the quotas have left."""
    for quota in quotas:
        asked = _counted([pod for pod in pods if _applies(quota, pod)])
        spec, status = quota.get("spec", {}), quota.get("status", {})
        hard, used = (parse_amounts(each) for each in (spec.get("hard"), status.get("used")))
        for name, allowed in hard.items():
            wanted, taken = asked.get(name, 0.0), used.get(name, 0.0)
            if wanted > 0 and wanted + taken > allowed:
                yield Shortage(quota["metadata"]["name"], name, wanted, taken, allowed)


def _counted(pods: Sequence[PodNeeds]) -> Amounts:
    """Return what pods ask for, by the names that a quota has for it."""
    asked = {"pods": float(len(pods)), "count/pods": float(len(pods))}
    asked |= {f"limits.{n}": v for n, v in total(p.limits for p in pods).items()}
    for name, value in total(pod.requests for pod in pods).items():
        asked |= {f"requests.{name}": value}
        if name in _NATIVE:
            asked[name] = value
    return asked


def unset(pod: PodNeeds, quotas: Iterable[Object]) -> list[str]:
    """Return the resources that a quota demands of `pod` and that `pod` does not set."""
    applied = [quota for quota in quotas if _applies(quota, pod)]
    demanded = {name for quota in applied for name in quota.get("spec", {}).get("hard") or ()}
    found = set()
    for name in _COMPUTE:
        if demanded & {name, f"requests.{name}"} and name not in pod.requests:
            found.add(f"requests {name}")
        if f"limits.{name}" in demanded and name not in pod.limits:
            found.add(f"limits {name}")
    return sorted(found)


def selects_by_priority(quota: Object) -> bool:
    """Return whether a quota counts pods of some priority classes only."""
    return any(rule.get("scopeName") == "PriorityClass" for rule in _scopes(quota))


def _scopes(quota: Object) -> Iterator[Object]:
    """Yield the scopes of a quota in the form with an operator."""
    spec = quota.get("spec", {})
    for name in spec.get("scopes") or ():
        yield {"scopeName": name, "operator": "Exists"}
    yield from (spec.get("scopeSelector") or {}).get("matchExpressions") or ()


def _applies(quota: Object, pod: PodNeeds) -> bool:
    """Return whether a quota counts a pod: one that fits all its scopes."""
    return all(_fits(scope, pod) for scope in _scopes(quota))


def _fits(scope: Object, pod: PodNeeds) -> bool:
    """Return whether a pod is in a scope (evaluator/core/pods.go: podMatchesScopeFunc)."""
    has_compute = any(each.get(name) for each in (pod.requests, pod.limits) for name in _COMPUTE)
    match scope.get("scopeName"):
        case "Terminating":
            return pod.has_deadline
        case "NotTerminating":
            return not pod.has_deadline
        case "BestEffort":
            return not has_compute
        case "NotBestEffort":
            return has_compute
        case "PriorityClass" as key:
            known = {key: pod.priority_class} if pod.priority_class else {}
            return _holds({**scope, "key": key}, known)
        case "CrossNamespacePodAffinity":
            return _crosses_namespaces(pod.affinity)
    return False  # scopes of other objects, such as VolumeAttributesClass


def _crosses_namespaces(affinity: Object) -> bool:
    for kind in ("podAffinity", "podAntiAffinity"):
        for terms in (affinity.get(kind) or {}).values():
            for term in terms or ():
                rule = term.get("podAffinityTerm", term)
                if rule.get("namespaces") or rule.get("namespaceSelector") is not None:
                    return True
    return False


def may_use(node: Object, pod: PodNeeds) -> bool:
    """Return whether the scheduler may put `pod` on a node, its free resources apart."""
    spec, metadata = node.get("spec", {}), node["metadata"]
    labels = metadata.get("labels") or {}
    conditions = node.get("status", {}).get("conditions") or ()
    is_ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    if not is_ready or spec.get("unschedulable"):
        return False
    if any(labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    taints = [each for each in spec.get("taints") or () if each["effect"] != "PreferNoSchedule"]
    if not all(any(_tolerates(one, taint) for one in pod.tolerations) for taint in taints):
        return False
    required = (pod.affinity.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (required or {}).get("nodeSelectorTerms") or ()
    fields = {"metadata.name": metadata["name"]}
    return not terms or any(_meets(term, labels, fields) for term in terms)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    same = toleration.get("key") == taint["key"]
    return same and (toleration.get("value") or "") == (taint.get("value") or "")


def _meets(term: Object, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    on_labels = ((rule, labels) for rule in term.get("matchExpressions") or ())
    on_fields = ((rule, fields) for rule in term.get("matchFields") or ())
    return all(_holds(rule, known) for rule, known in (*on_labels, *on_fields))


def _holds(rule: Object, known: Mapping[str, str]) -> bool:
    value, values = known.get(rule["key"]), rule.get("values") or [""]
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" if value is not None and value.lstrip("-").isdigit():
            above = int(value) - int(values[0])
            return above > 0 if rule["operator"] == "Gt" else above < 0
    return False


def places(nodes: Collection[Object], pod: PodNeeds, running: Iterable[Object] = ()) -> int:
    """Return how many pods like `pod` the nodes could hold at once, beside `running` pods."""
    used: dict[str, list[Amounts]] = {}
    for each in running:
        used.setdefault(each["spec"].get("nodeName") or "", []).append(_requests_of(each))
    found = 0
    for node in nodes:
        if may_use(node, pod):
            taken = total(used.get(node["metadata"]["name"], ()))
            free = parse_amounts(node["status"].get("allocatable"))
            asked = {**pod.requests, "pods": 1.0}
            counts = [
                (free.get(name, 0.0) - taken.get(name, 0.0) + 1e-9) // value
                for name, value in asked.items()
                if value > 0
            ]
            found += max(0, int(min(counts)))
    return found


def _requests_of(pod: Object) -> Amounts:
    """Return what the scheduler counts for a pod: the sum of its containers, at least the largest
    one that initialises it, and its overhead."""
    spec = pod["spec"]
    asked = [each.get("resources", {}).get("requests") for each in spec["containers"]]
    summed = total(map(parse_amounts, asked))
    for each in spec.get("initContainers") or ():
        for name, value in parse_amounts(each.get("resources", {}).get("requests")).items():
            summed[name] = max(summed.get(name, 0.0), value)
    return total([summed, parse_amounts(spec.get("overhead")), {"pods": 1.0}])


def _parse(text: object) -> float:
    """Return the value of a quantity in base units: cores, bytes, pieces.

    Grammar: apimachinery/pkg/api/resource/quantity.go. Raises ValueError.
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is no quantity of Kubernetes, such as 500m or 2Gi")
    return float(match[1]) * _UNITS[match[2]]


def parse_amounts(amounts: Mapping[str, object] | None) -> dict[str, float]:
    """Return resource → value."""
    return {name: _parse(text) for name, text in (amounts or {}).items()}


def total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of each resource."""
    summed: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            summed[name] = summed.get(name, 0.0) + value
    return summed


def show(resource: str, value: float) -> str:
    """Return a value as people write it: ``1.5``, ``2Gi``; cores and pieces have no unit."""
    is_bytes = any(word in resource for word in ("memory", "storage", "hugepages"))
    for unit in ("Ti", "Gi", "Mi", "Ki") if is_bytes else ():
        if value >= _UNITS[unit]:
            return f"{value / _UNITS[unit]:.4g}{unit}"
    return f"{value:.4g}"
