"""All-reduces between the workers of a plan, for `doctor --deep`: which ones, and results.

The workers measure them with TensorFlow's own collectives (`tfcluster_workers.all_reduce`), in the
place of the job, one after the other: each link alone, then the ring of all workers, with each
communication.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import parse
from tfcluster.agent.protocol import ProtocolError
from tfcluster.backends import bundle
from tfcluster.errors import join_first
from tfcluster.nodes import orders, probed_resources
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.plans.plan import Plan, TaskId, TaskPlan
from tfcluster.plans.resources import shared_gpus
from tfcluster.plans.tf_config import Attempt
from tfcluster.preflight import probes
from tfcluster.preflight.preflight_report import (
    ALL_REDUCE_BYTES,
    Finding,
    MeasuredAllReduce,
    PreflightReport,
)
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.task_logs import last_text
from tfcluster.supervision.failure import Failure, Kind

BUDGET_S: Final = 240.0
"""Time after which no further all-reduce begins."""
TIMEOUT_S: Final = 120.0
"""Time for one all-reduce: at 4 Mbit/s."""
_MOST_LINKS: Final = 28
"""The links of 8 workers; of more workers only those are measured that the ring uses."""
_MOST_NEIGHBOURS: Final = 64
_START_S: Final = 180.0
"""Time for TensorFlow to be imported and for the workers to meet."""
_CAUSE_S: Final = 15.0
"""Time after a worker's failure in which the one that caused it ends, too."""
_FIX: Final = "check the network between the nodes, and the logs of a run: `tfcluster up SPEC`"


def why_not(plan: Plan, devices: Mapping[str, Sequence[str]]) -> str:
    """Return why the workers of `plan` cannot run an all-reduce; empty if they can.

    `devices`: node → what TensorFlow registers there, where it could be imported.
    """
    if plan.kind != "training":
        return f"a job of kind {plan.kind} has none"
    if plan.strategy != "multi_worker_mirrored":
        return f"strategy {plan.strategy} has none over the tasks"
    if len(workers_of(plan)) < 2:
        return "there is one worker"
    without = [worker.node for worker in workers_of(plan) if worker.node not in devices]
    return f"TensorFlow was not imported on {join_first(without)}" if without else ""


def workers_of(plan: Plan) -> list[TaskPlan]:
    """Return the tasks that sum their gradients, in TensorFlow's order."""
    tasks = (task for task in plan.tasks if task.id.trains)
    return sorted(tasks, key=lambda task: task.id)


def links_of(plan: Plan) -> tuple[list[tuple[TaskId, TaskId]], str]:
    """Return the links to measure, and a sentence about those that are left out.

    A link is between the first workers of two nodes; on one node, between any two of its workers.
    """
    first: dict[str, TaskId] = {}
    for worker in workers_of(plan):
        first.setdefault(worker.node, worker.id)
    ends = list(first.values()) if len(first) > 1 else [worker.id for worker in workers_of(plan)]
    links = list(combinations(ends, 2))
    if len(links) <= _MOST_LINKS:
        return links, ""
    ring = list(zip(ends, [*ends[1:], ends[0]], strict=True))[:_MOST_NEIGHBOURS]
    left_out = f"Only {len(ring)} of {len(links):,} links were measured: neighbours in the ring"
    return ring, left_out


def communications(plan: Plan, devices: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the communications that apply; `devices`: node → what TensorFlow registers there.

    NCCL needs a GPU for each worker, which no other one uses.
    """
    by_node: dict[str, list[TaskPlan]] = {}
    for worker in workers_of(plan):
        by_node.setdefault(worker.node, []).append(worker)
    has_gpus = all("GPU" in devices.get(node, ()) for node in by_node)
    shares = any(shared_gpus([task.gpus for task in tasks]) for tasks in by_node.values())
    return ("RING", "NCCL") if has_gpus and not shares else ("RING",)


def order_of(plan: Plan, names: Sequence[str]) -> str:
    """Return the order to the workers' program, in JSON; `names`: the communications."""
    links, _ = links_of(plan)
    everyone = [str(worker.id) for worker in workers_of(plan)]
    groups = [*(list(map(str, link)) for link in links), *([everyone] if everyone[2:] else [])]
    return json.dumps(
        {
            "groups": groups,
            "communications": names,
            "bytes": ALL_REDUCE_BYTES,
            "device": "GPU" if "NCCL" in names else "CPU",
            "timeout_s": TIMEOUT_S,
            "budget_s": BUDGET_S,
        }
    )


def gang_of(plan: Plan, order: str, boots: Mapping[str, str]) -> Plan:
    """Return `plan` with only its workers, which measure; `boots`: node → the path of boot there.

    They run in no folder of the job: a node may not have the code.
    """
    tasks = []
    for task in workers_of(plan):
        python = plan.node(task.node).python
        argv = (python, boots[task.node], "module", "tfcluster_workers.all_reduce", order)
        tasks.append(replace(task, command=replace(task.command, argv=argv, cwd="/")))
    return replace(plan, tasks=tuple(tasks), preload=(), settings={})


class Measurement:
    """One start of the workers with the program that measures; `note` gets what they report."""

    def __init__(
        self, plan: Plan, hub: Hub, paths: RunPaths, devices: Mapping[str, Sequence[str]]
    ) -> None:
        """Prepare; `devices`: node → what TensorFlow registers there."""
        self._plan, self._hub, self._paths = plan, hub, paths
        self._communications = communications(plan, devices)
        self._workers = [worker.id for worker in workers_of(plan)]
        self._nodes = {str(worker): plan.task(worker).node for worker in self._workers}
        self._measured: list[MeasuredAllReduce] = []
        self._errors: dict[str, msg.TaskError] = {}
        self._failed: list[msg.TaskExited | msg.StartFailed] = []
        self._succeeded: set[str] = set()
        self._late_at = self._cause_at = float("inf")

    @property
    def announcement(self) -> str:
        """A sentence for the user, who has to wait."""
        names = " and ".join(self._communications)
        size = f"{ALL_REDUCE_BYTES / 1e6:.0f} MB"
        return f"measuring all-reduces of {size} between {len(self._workers)} workers ({names}) …"

    async def start(self, answers: Sequence[ProbeAnswer], nodes: Sequence[str]) -> None:
        """Order the start of all workers; `answers`: those of the probes of `nodes`."""
        built = await asyncio.to_thread(bundle.build)
        boots = {node: orders.boot_path(self._hub.site(node), built.digest) for node in nodes}
        order = order_of(self._plan, self._communications)
        gang = gang_of(self._plan, order, boots)
        ports = orders.held_ports(self._hub, nodes)
        for answer in answers:
            site = self._hub.site(answer.node)
            shares = probed_resources.assign_resources(self._plan, answer) if site.is_remote else {}
            start = orders.start(
                Attempt(gang, 1, tuple(self._workers), ports),
                site,
                holds_ports=self._hub.holds_ports(answer.node),
                only=self._workers,
                restored_step=None,
                faults=(),
                proxy_env=probes.proxy_env(gang, answer),
                assigned=shares,
                tracker_group=None,
            )
            self._hub.send(answer.node, start)
        self._late_at = self._now() + _START_S + TIMEOUT_S

    def note(self, message: msg.Report) -> None:
        """Note what an agent says about a worker."""
        match message:
            case msg.TaskEvent(task=task, event=event):
                self._note_report(task, event)
            case msg.TaskExited(task=task, exit_code=0):
                self._succeeded.add(task)
            case msg.TaskExited(task=task) | msg.StartFailed(task=task) if task in self._nodes:
                self._failed.append(message)
                self._cause_at = min(self._cause_at, self._now() + _CAUSE_S)

    def _note_report(self, task: str, event: Mapping[str, object]) -> None:
        try:
            report = parse(event, msg.TaskReport)
        except ProtocolError:
            return
        match report:
            case msg.AllReduce(communication=name, workers=workers, seconds=seconds):
                nodes = [self._nodes[worker] for worker in workers if worker in self._nodes]
                if len(nodes) == len(workers) > 1 and seconds > 0:
                    self._late_at += 0 if self._measured else BUDGET_S
                    all_reduce = MeasuredAllReduce(name, tuple(workers), tuple(nodes), seconds)
                    self._measured.append(all_reduce)
            case msg.TaskError():
                self._errors[task] = report

    @property
    def is_over(self) -> bool:
        ended = len(self._succeeded) + len(self._failed)
        return ended == len(self._workers) or self._now() > min(self._late_at, self._cause_at)

    def added_to(self, report: PreflightReport, lost: Mapping[str, str]) -> PreflightReport:
        """Return `report` with the results; `lost`: nodes that were lost meanwhile → why."""
        links, left_out = links_of(self._plan)
        notes = [*report.notes, *filter(None, [left_out])]
        findings = [Finding(node, "reach", reason, _FIX) for node, reason in lost.items()]
        expected = len(self._communications) * (len(links) + (len(self._workers) > 2))
        # How a worker ends that has measured everything does not matter.
        if not findings and len(self._measured) < expected:
            findings = [finding] if (finding := self._failure()) is not None else []
            if not findings:
                count = f"{len(self._measured)} of {expected}"
                notes.append(f"Only {count} all-reduces were measured, in {BUDGET_S:.0f} s")
        measured = tuple(self._measured)
        return replace(report, notes=tuple(notes), all_reduces=measured).with_more(findings)

    def _failure(self) -> Finding | None:
        """Return the finding about the worker that failed by itself, or that never ended."""
        failures = [self._failure_of(end) for end in self._failed]
        cause = next((failure for failure in failures if not failure.is_collateral), None)
        if cause := cause or next(iter(failures), None):
            node, problem = cause.node, f"{cause.task} failed in an all-reduce: {cause.reason}"
            return Finding(node, "all-reduce", problem, cause.hint or _FIX, self._is_needed)
        late = [task for task in self._workers if str(task) not in self._succeeded]
        if not late:
            return None
        task, names = self._plan.task(late[0]), ", ".join(map(str, late))
        problem = f"{names}: the all-reduces were not over in time"
        return Finding(task.node, "all-reduce", problem, _FIX, self._is_needed)

    def _failure_of(self, end: msg.TaskExited | msg.StartFailed) -> Failure:
        task, error = TaskId.parse(end.task), self._errors.get(end.task)
        failure = Failure(end.task, None, None, node=self._plan.task(task).node)
        if isinstance(end, msg.StartFailed):
            return replace(failure, observed=Kind.START_FAILED, description=end.error)
        return replace(
            failure,
            exit_code=end.exit_code,
            signal=end.signal,
            error=None if error is None else vars(error),
            last_lines=last_text(self._paths.task_log(task, 1)),
        )

    @property
    def _is_needed(self) -> bool:
        """True if what has failed would stop the job: all but NCCL, where the job does not ask."""
        has_ring = any(
            measured.communication == "RING" and len(measured.workers) == len(self._workers)
            for measured in self._measured
        )
        return not has_ring or self._plan.settings.get("communication") == "NCCL"

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
