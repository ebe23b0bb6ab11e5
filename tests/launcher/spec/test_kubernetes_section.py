"""`runtime.kubernetes` refuses what the API server would refuse, with a fix."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.errors import SpecError
from tfcluster.spec import load as spec_load
from tfcluster.spec.kubernetes import Kubernetes

VOLUME = {"name": "d", "mount": "/d", "claim": "c"}


def load(kubernetes: dict[str, Any], **sections: Any) -> Kubernetes:
    runtime = {"backend": "kubernetes", "kubernetes": kubernetes, **sections.pop("runtime", {})}
    spec = {"cluster": {"worker": 2}, "job": {"script": "a.py"}, "runtime": runtime, **sections}
    return spec_load.load(spec).spec.runtime.kubernetes


def test_numbers_are_amounts() -> None:
    limits = {"cpu": 0.5, "memory": "8Gi", "nvidia.com/gpu": 1}
    found = load({"resources": {"limits": limits}}).resources.limits
    assert found == {"cpu": "0.5", "memory": "8Gi", "nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("kubernetes", "message"),
    [
        ({"namespace": "A_b"}, "namespace: 'A_b' is not a name"),
        ({"resources": {"limits": {"memory": "8 GB"}}}, "'8 GB' is not an amount"),
        ({"resources": {"requests": {"x.y/gpu": 1}}}, "the request of x.y/gpu is not its limit"),
        ({"node_selector": {"a/b/c": "d"}}, "'a/b/c' is not the key of a label"),
        ({"labels": {"a": "b c"}}, "'b c' is not the value of a label"),
        ({"labels": {"tfcluster.dev/run": "x"}}, "is set by tfcluster"),
        ({"volumes": [{**VOLUME, "mount": "d"}]}, "'d' is not an absolute path"),
        ({"volumes": [{**VOLUME, "mount": "/tfcluster/x"}]}, "cannot be mounted"),
        ({"volumes": [{**VOLUME, "secret": "s"}]}, "both claim and secret"),
        ({"volumes": [{"name": "d", "mount": "/d"}]}, "the volume d has no source"),
        ({"volumes": [VOLUME, {**VOLUME, "mount": "/e"}]}, "two volumes have the name d"),
        ({"env_from": [{}]}, "one of secret and config_map"),
        ({"tolerations": [{"toleration_seconds": 1}]}, "has no key 'toleration_seconds'"),
        ({"gang": "slurm"}, "gang"),
        ({"gang": "kueue"}, "kueue starts only pods with a queue"),
        ({"queue": "q"}, "gang is none, which has no queues"),
        ({"pod_template": {"kind": "Pod"}}, "a pod template has metadata and spec"),
        ({"pod_template": {"spec": {"hostname": "x"}}}, "relies on its own hostname"),
    ],
)
def test_mistakes_are_refused(kubernetes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(kubernetes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"runtime": {"user": "anna"}}, "users by their numbers, not as 'anna'"),
        ({"resources": {"memory": "8g"}}, "written in runtime.kubernetes.resources"),
        ({"resources": {"gpus": 1}}, "the pods have no GPU"),
        ({"checkpoints": {"dir": "ck"}}, "pods do not see this machine's folder 'ck'"),
        ({"checkpoints": {"dir": "/ck"}}, "no volume of the pods is mounted at '/ck'"),
        ({"runtime": {"hosts": {"*": {"data_dir": "d"}}}}, "this machine's folder 'd'"),
    ],
)
def test_settings_of_this_machine_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load({}, **sections)
    assert message in str(caught.value)


def test_storage_on_a_volume_or_in_a_bucket_is_accepted() -> None:
    load({"volumes": [VOLUME]}, checkpoints={"dir": "/d/exp7"})
    load({}, checkpoints={"dir": "gs://bucket/exp7"}, runtime={"user": "2000"})
