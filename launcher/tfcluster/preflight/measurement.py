"""The workers of a plan measure all-reduces, as `doctor --deep` orders, in the place of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import parse
from tfcluster.agent.protocol import ProtocolError
from tfcluster.backends import bundle
from tfcluster.nodes import orders
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.nodes.task_reports import last_text
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.plans.tf_config import Attempt
from tfcluster.preflight import all_reduce, probes
from tfcluster.preflight.all_reduce import BUDGET_S, TIMEOUT_S, AllReduce
from tfcluster.preflight.rules import Finding, PreflightReport
from tfcluster.rundir.paths import RunPaths
from tfcluster.supervision.failure import Failure, Kind

_START_S: Final = 180.0
"""Time for TensorFlow to be imported and for the workers to meet."""
_CAUSE_S: Final = 15.0
"""Time after a worker's failure in which the one that caused it ends, too."""
_FIX: Final = "check the network between the nodes, and the logs of a run: tfcluster up SPEC"


class Measurement:
    """One start of the workers with the program that measures; `note` gets what they report."""

    def __init__(
        self, plan: Plan, hub: Hub, paths: RunPaths, devices: Mapping[str, Sequence[str]]
    ) -> None:
        """Prepare; `devices`: node → what TensorFlow registers there."""
        self._plan, self._hub, self._paths = plan, hub, paths
        self._communications = all_reduce.communications(plan, devices)
        self._workers = [worker.id for worker in all_reduce.workers_of(plan)]
        self._nodes = {str(worker): plan.task(worker).node for worker in self._workers}
        self._measured: list[AllReduce] = []
        self._errors: dict[str, msg.TaskError] = {}
        self._failed: list[msg.TaskExited | msg.StartFailed] = []
        self._succeeded: set[str] = set()
        self._late_at = self._cause_at = float("inf")

    @property
    def announcement(self) -> str:
        """A sentence for the user, who has to wait."""
        names = " and ".join(self._communications)
        return f"measuring all-reduces of 64 MB between {len(self._workers)} workers ({names}) …"

    async def start(self, answers: Sequence[ProbeAnswer], nodes: Sequence[str]) -> None:
        """Order the start of all workers; `answers`: those of the probes of `nodes`."""
        built = await asyncio.to_thread(bundle.build)
        boots = {node: orders.boot_path(self._hub.site(node), built.digest) for node in nodes}
        order = all_reduce.order_of(self._plan, self._communications)
        gang = all_reduce.gang_of(self._plan, order, boots)
        ports = orders.held_ports(self._hub, nodes)
        for answer in answers:
            site = self._hub.site(answer.node)
            shares = orders.assign_resources(self._plan, answer) if site.is_remote else {}
            start = orders.start(
                Attempt(gang, 1, tuple(self._workers), ports),
                site,
                holds_ports=self._hub.holds_ports(answer.node),
                only=self._workers,
                restored_step=None,
                faults=(),
                proxy_env=probes.proxy_env(gang, answer),
                assigned=shares,
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
                    self._measured.append(AllReduce(name, tuple(workers), tuple(nodes), seconds))
            case msg.TaskError():
                self._errors[task] = report

    @property
    def is_over(self) -> bool:
        ended = len(self._succeeded) + len(self._failed)
        return ended == len(self._workers) or self._now() > min(self._late_at, self._cause_at)

    def added_to(self, report: PreflightReport, lost: Mapping[str, str]) -> PreflightReport:
        """Return `report` with the results; `lost`: nodes that were lost meanwhile → why."""
        links, left_out = all_reduce.links_of(self._plan)
        notes = [*report.notes, *filter(None, [left_out])]
        findings = [Finding(node, "reach", why, _FIX) for node, why in lost.items()]
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
        cause = next((one for one in failures if not one.is_collateral), None)
        if cause := cause or next(iter(failures), None):
            node, what = cause.node, f"{cause.task} failed in an all-reduce: {cause.reason}"
            return Finding(node, "all-reduce", what, cause.hint or _FIX, self._is_needed)
        late = [task for task in self._workers if str(task) not in self._succeeded]
        if not late:
            return None
        task, names = self._plan.task(late[0]), ", ".join(map(str, late))
        what = f"{names}: the all-reduces were not over in time"
        return Finding(task.node, "all-reduce", what, _FIX, self._is_needed)

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
            one.communication == "RING" and len(one.workers) == len(self._workers)
            for one in self._measured
        )
        return not has_ring or self._plan.settings.get("communication") == "NCCL"

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
