"""The one fake of an API server: a namespace of objects, which tests read and change directly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from tfcluster.backends.kubernetes.kube_client import KubeError, KubeSilentError
from tfcluster.backends.kubernetes.run_objects import MANAGED_BY, RUN, RUN_ID
from tfcluster.backends.kubernetes.run_pods import merge

Object = dict[str, Any]


class FakeApi:
    """A `kube_client.KubeCluster` of one run, whose labels so select nothing."""

    namespace, name = "vision", "https://k/vision"

    def __init__(self) -> None:
        self.access = SimpleNamespace(context=None)
        self.objects: dict[str, Object] = {}
        """Path → object."""
        self.asked: list[str] = []
        self.created: list[Object] = []
        self.patched: list[tuple[str, Object, int]] = []
        """Path, change, and how many objects had been created by then."""
        self.deletions: list[tuple[str, Mapping[str, object]]] = []
        self.refuses: dict[str, KubeError] = {}
        """Part of a path → the error of each request for it."""
        self.silent = 0
        """The requests that are not answered from now on."""
        self.fence: Callable[[], None] = lambda: None
        self.before_patch: Callable[[], None] = lambda: None
        self._uids = itertools.count(1)

    def add(self, path: str, *, notes: Mapping[str, str] = {}, **metadata: Any) -> Object:
        """Add an object of the run lab-1 with annotations `notes`."""
        known: Object = {"labels": {MANAGED_BY: "tfcluster", RUN: "lab-1"}, "resourceVersion": "1"}
        known |= {"name": path.rpartition("/")[2], "annotations": {RUN_ID: "lab-1", **notes}}
        known["uid"] = f"uid-{next(self._uids)}"
        self.objects[path] = {"metadata": {**known, **metadata}}
        return self.objects[path]

    @property
    def deleted(self) -> list[str]:
        return [path for path, _ in self.deletions]

    def _receive(self, path: str) -> None:
        self.asked.append(path)
        if self.silent:
            self.silent -= 1
            raise KubeSilentError("the API server does not answer")
        for part, error in self.refuses.items():
            if part in path:
                raise error

    def find(self, path: str) -> Object | None:
        self._receive(path)
        return self.objects.get(path)

    def get(self, path: str, **query: object) -> Object:
        found = self.find(path)
        assert found is not None, path
        return found

    def list(self, path: str, **query: object) -> list[Object]:
        self._receive(path)
        return [each for at, each in self.objects.items() if at.startswith(f"{path}/")]

    def create(self, path: str, body: Object) -> Object:
        self._receive(path)
        made = self.add(f"{path}/{body['metadata']['name']}")
        made |= {**body, "metadata": {**made["metadata"], **body["metadata"]}}
        self.created.append(body)
        return made

    def patch(self, path: str, body: Object) -> Object:
        self.fence()
        self.before_patch()
        made = self.get(path)
        version = made["metadata"].get("resourceVersion", "1")
        if body.get("metadata", {}).get("resourceVersion") not in (None, version):
            raise KubeError("the object has been modified", status=409)
        self.patched.append((path, body, len(self.created)))
        made |= merge(made, body)
        made["metadata"]["resourceVersion"] = str(int(version) + 1)
        return made

    def delete(
        self,
        path: str,
        *,
        grace_s: int | None = None,
        background: bool = True,
        uid: str | None = None,
    ) -> None:
        self.fence()
        self._receive(path)
        self.deletions.append((path, {"grace_s": grace_s, "background": background, "uid": uid}))
        if (made := self.objects.get(path)) is None:
            return
        if uid not in (None, made["metadata"].get("uid")):
            raise KubeError("another object has that name", status=409)
        self.end(path, grace_s, background=background)

    def end(self, path: str, grace_s: int | None, *, background: bool) -> None:
        """Do what becomes of an object that is deleted."""
        self.objects.pop(path)
