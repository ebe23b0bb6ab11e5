"""The format `jobset`: a JobSet (jobset.sigs.k8s.io) with an Indexed Job for each job."""

from __future__ import annotations

from typing import Any

from tfcluster.backends.kubernetes import run_objects
from tfcluster.export.indexed_job import (
    BACKEND as BACKEND,
)
from tfcluster.export.indexed_job import (
    DISRUPTED,
    addressed,
    by_job,
    comment_lines,
    gang_objects,
    job_metadata,
    job_spec,
    task_needs,
)
from tfcluster.export.kube_pods import run_of, yaml_text
from tfcluster.export.request import Exported, Request, Subject


def render(subject: Subject, request: Request) -> Exported:
    """Return the JobSet of a plan for Kubernetes; raises SetupError as `indexed_job` does."""
    run = run_of(subject)
    needs = ("the JobSet controller in the cluster", *task_needs(subject))
    plan = addressed(run, lambda job, index: f"{run.name}-{job}-0-{index}.{run.name}")
    jobs: list[dict[str, Any]] = []
    for job in by_job(plan):
        spec = job_spec(subject, run, plan, job)
        del spec["template"]["spec"]["subdomain"]  # JobSet's own
        rule = {"action": "FailJob", "onPodConditions": DISRUPTED}
        spec |= {"backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}}
        jobs.append({"name": job, "replicas": 1, "template": {"spec": spec}})
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": job_metadata(run, run.name),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "publishNotReadyAddresses": True,
                "subdomain": run.name,
            },
            "failurePolicy": {
                "maxRestarts": plan.supervision.max_restarts,
                "rules": [
                    {
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [plan.chief.job]},
            "replicatedJobs": jobs,
        },
    }
    comment = comment_lines(run, request, "jobset", needs)
    objects = [run_objects.network_policy(run), *gang_objects(run), jobset]
    return Exported(yaml_text(comment, objects), needs)
