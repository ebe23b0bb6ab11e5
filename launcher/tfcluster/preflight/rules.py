"""Rules that find what is wrong with the nodes of a run, from each node's probe answer (pure).

TensorFlow reports the same problems after an hour, or without naming the host. Sources of the
rules: unequal versions tensorflow#34156, unequal GPUs #47203 and #60847, unreachable peers #46931.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tfcluster.agent import foreign_json
from tfcluster.errors import PreflightError, count_names
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.plans.context import LOCAL
from tfcluster.plans.plan import Plan
from tfcluster.plans.resources import GIVEN_GPUS
from tfcluster.rundir.paths import RunPaths
from tfcluster.supervision.known_errors import fix_of_no_gpu
from tfcluster.typed_json import from_json, object_to_json

if TYPE_CHECKING:
    from tfcluster.backends.jobs import Outlook

BYTES: Final = 64_000_000
_MIN_FREE_BYTES = 1_000_000_000
_MIN_SHM_BYTES = 64_000_000
_MAX_SKEW_S = 5.0
_WRONG_NAME = re.compile(
    r"on this node$|[Nn]ame or service|[Nn]ame resolution|[Nn]o address|hostname"
)
"""Reasons that are a wrong name's: the probe's own, and those of getaddrinfo (gai_strerror(3))."""

VERSIONS = {
    "TensorFlow": "tensorflow",
    "Keras": "keras",
    "tf_keras": "tf-keras",
    "NumPy": "numpy",
    "protobuf": "protobuf",
}
"""Row of the table → package."""
_MAY_DIFFER = ("NumPy", "protobuf")
"""Rows whose versions may differ between nodes: a difference is a warning."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of one node; a fatal one stops the run before it starts."""

    node: str
    check: str
    """Row of the table: ``TensorFlow``, ``ports``, ``clock`` …"""
    what: str
    fix: str
    is_fatal: bool = True


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a job on the nodes it runs on."""

    tensorflow: bool = True
    gang: bool = True
    """The nodes train as one gang, so they must be alike. False for parameter servers, tuners and
    commands whose Python is not known."""
    nccl: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Node → its tasks that use NCCL."""
    with_gpus: Collection[str] = ()
    """Nodes that have tasks to which the plan gives GPUs: these fail if TensorFlow has none."""
    gpu_indexes: Mapping[str, int] = field(default_factory=dict)
    """Node → the highest GPU index that the spec assigns to its tasks."""
    script_sha256: str | None = None
    """SHA-256 of the job's script on this machine."""
    writes: str | None = None
    """The folder that every node must be able to write to."""


def needs_of(plan: Plan, script_sha256: str | None = None) -> Needs:
    """Return what the job of `plan` requires; `script_sha256` is that of the local script.

    The GPUs of this machine are known to the plan: `obstacles` has the rules about them.
    """
    known = all(node.interpreter is not None for node in plan.nodes)
    nccl: dict[str, list[str]] = {}
    highest: dict[str, int] = {}
    for task in (task for task in plan.tasks if not plan.node(task.node).is_here):
        if plan.settings.get("communication") == "NCCL" and task.id.job in ("chief", "worker"):
            nccl.setdefault(task.node, []).append(str(task.id))
        for index in task.gpus or ():
            if isinstance(index, int):
                highest[task.node] = max(highest.get(task.node, 0), index)
    return Needs(
        tensorflow=plan.needs_tensorflow,
        gang=known and plan.kind == "training" and plan.strategy == "multi_worker_mirrored",
        nccl=nccl,
        with_gpus={
            task.node
            for task in plan.tasks
            if any(variable.name == GIVEN_GPUS for variable in task.command.env)
        },
        gpu_indexes=highest,
        script_sha256=script_sha256,
        writes=plan.checkpoints.dir,
    )


def judge(
    answers: Sequence[ProbeAnswer], needs: Needs, *, silent: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Return all findings, the fatal ones first.

    `silent`: nodes that did not answer; that others cannot reach them is not reported again.
    """
    findings: list[Finding] = []
    for answer in answers:
        findings += [
            *_check_python(answer, needs),
            *_check_network(answer, silent),
            *_check_storage(answer, needs),
            *_check_gpus(answer, needs),
            *_check_registered_gpus(answer, needs),
            *_check_clock(answer),
        ]
    findings += _compare_nodes(answers, needs) if needs.gang else ()
    return tuple(sorted(findings, key=lambda finding: not finding.is_fatal))


def _check_python(answer: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if needs.tensorflow and "tensorflow" not in answer.packages:
        field = "--python PATH" if answer.node == LOCAL else f"runtime.hosts.{answer.node}.python"
        fix = f"name a Python that has it: {field}"
        yield Finding(answer.node, "TensorFlow", "its Python has no TensorFlow", fix)
    imported = answer.imported or {}
    if "error" in imported and "tensorflow" in answer.packages:
        problem = f"import tensorflow fails: {imported['error']}"
        fix = f"run on that node: {answer.executable} -c 'import tensorflow'"
        yield Finding(answer.node, "import", problem, fix)


def _check_network(answer: ProbeAnswer, silent: Collection[str]) -> Iterator[Finding]:
    for host in answer.strange_names:
        fix = "correct the name there (DNS, /etc/hosts), or write the IP address in the spec"
        yield Finding(answer.node, "names", f"{host} is not an address of this node", fix)
    for port, reason in answer.not_listening:
        problem = f"cannot listen on port {port}: {reason}"
        yield Finding(
            answer.node, "ports", problem, "write another port in the spec (0 = choose one)"
        )
    for node, task, host, port, reason in answer.unreachable:
        if node in silent:
            continue
        problem = f"cannot connect to {task} ({host}:{port}): {reason}"
        fix = (
            "open that port between the two (firewall, security group), or write one that is open"
            " (runtime.ports: a range)"
        )
        if _WRONG_NAME.search(reason):
            fix = "correct the name there (/etc/hosts, DNS); an IP address in the spec needs none"
        yield Finding(answer.node, "peers", problem, fix)


def _check_storage(answer: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if answer.free_bytes is not None and answer.free_bytes < _MIN_FREE_BYTES:
        problem = f"only {answer.free_bytes / 1e6:.0f} MB of disk are free"
        yield Finding(answer.node, "disk", problem, "free some disk space", False)
    if answer.shm_bytes is not None and answer.shm_bytes < _MIN_SHM_BYTES and answer.gpus:
        problem = f"only {answer.shm_bytes / 1e6:.0f} MB of /dev/shm are free"
        fix = "NCCL needs shared memory: mount a larger /dev/shm (docker: --shm-size=1g)"
        yield Finding(answer.node, "/dev/shm", problem, fix, False)
    for folder, reason in answer.unwritable:
        is_fatal = folder == needs.writes  # a data set may be on a read-only mount
        fix = "make it writable for the user who runs the tasks, or name another folder"
        yield Finding(
            answer.node, "folders", f"{folder} cannot be written: {reason}", fix, is_fatal
        )
    local, remote = needs.script_sha256, answer.script_sha256
    if local is not None and remote is not None and local != remote:
        fix = "check that both machines mount the same working directory"
        yield Finding(answer.node, "script", "its script differs from the one on this machine", fix)


def _check_gpus(answer: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if answer.gpu_trouble:
        fix = "check the driver: nvidia-smi, dmesg | grep -i nvrm"
        yield Finding(answer.node, "GPUs", answer.gpu_trouble, fix, False)
        return
    if (tasks := needs.nccl.get(answer.node)) and not answer.gpus:
        problem = f"strategy.communication is NCCL, but there is no GPU for {', '.join(tasks)}"
        yield Finding(answer.node, "GPUs", problem, "--set strategy.communication=RING, or AUTO")
    elif (highest := needs.gpu_indexes.get(answer.node, -1)) >= len(answer.gpus):
        problem = (
            f"GPU index {highest} is requested, but the node's GPU count is {len(answer.gpus)}"
        )
        yield Finding(
            answer.node, "GPUs", problem, "correct resources.gpus, or the gpus of its tasks"
        )


def _check_registered_gpus(answer: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    """Compare the GPUs that TensorFlow registers with those of nvidia-smi that it may see."""
    imported = answer.imported or {}
    expected = len(answer.gpus)
    if "CUDA_VISIBLE_DEVICES" in answer.named:  # of several parts of GPUs, CUDA shows the first one
        expected = sum(not str(gpu).startswith("MIG-") for gpu in answer.visible_gpus)
    registered = list(imported.get("devices", ())).count("GPU")
    if "devices" not in imported or not answer.gpus or registered >= expected:
        return
    listed = f"nvidia-smi lists {format_gpus(answer.gpus)}"
    if registered:
        problem = f"TensorFlow registers {registered} of {expected} GPUs ({listed})"
        yield Finding(answer.node, "GPUs", problem, "compare nvidia-smi with its log", False)
        return
    reason = imported.get("no_gpu") or "TensorFlow does not say why"
    problem = f"TensorFlow registers no GPU ({listed}): {reason}"
    fix = fix_of_no_gpu(imported.get("no_gpu_cause", ""))
    yield Finding(answer.node, "GPUs", problem, fix, answer.node in needs.with_gpus)


def _check_clock(answer: ProbeAnswer) -> Iterator[Finding]:
    if abs(answer.clock_ahead_s) > _MAX_SKEW_S:
        problem = f"its clock differs from this machine's by {answer.clock_ahead_s:+.0f} s"
        fix = "synchronize it by NTP: the times in logs are misleading"
        yield Finding(answer.node, "clock", problem, fix, False)


def _compare_nodes(answers: Sequence[ProbeAnswer], needs: Needs) -> Iterator[Finding]:
    """Yield a finding for each node whose versions or GPUs differ from those of most nodes."""
    equipped = [a for a in answers if "tensorflow" in a.packages or not needs.tensorflow]
    for row, package in VERSIONS.items():
        versions = {a.node: a.packages.get(package, "none") for a in equipped}
        yield from _find_outliers(row, versions, is_fatal=row not in _MAY_DIFFER)
    yield from _find_outliers("Python", {a.node: a.python.rpartition(".")[0] for a in answers})
    gpus = {a.node: format_gpus(a.gpus) for a in answers if not a.gpu_trouble}
    yield from _find_outliers("GPUs", gpus)


def _find_outliers(
    check: str, values: Mapping[str, str], *, is_fatal: bool = True
) -> Iterator[Finding]:
    counted = Counter(values.values()).most_common()
    if len(counted) < 2:
        return
    majority = counted[0][0]
    for node, value in values.items():
        if value != majority:
            problem = f"{check}: {value} on this node, {majority} on the others"
            yield Finding(node, check, problem, "all nodes must have the same", is_fatal)


def format_gpus(gpus: Sequence[str]) -> str:
    """Return the GPUs by model, such as ``2 × NVIDIA H200``."""
    return count_names(gpus) or "none"


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One measured all-reduce, in which each worker has `bytes`."""

    communication: str
    workers: tuple[str, ...]
    nodes: tuple[str, ...]
    """The nodes of `workers`."""
    seconds: float
    bytes: int = BYTES

    @property
    def gb_per_s(self) -> float:
        """The algorithm bandwidth: bytes by time (nccl-tests, PERFORMANCE.md)."""
        return self.bytes / self.seconds / 1e9

    @property
    def link_gb_per_s(self) -> float:
        """The bus bandwidth: what each link of a ring carries, 2(n-1)/n of the bytes by time."""
        return self.gb_per_s * 2 * (len(self.workers) - 1) / len(self.workers)

    def to_json(self) -> dict[str, Any]:
        rates = {"gb_per_s": self.gb_per_s, "link_gb_per_s": self.link_gb_per_s}
        return object_to_json(self) | {name: round(rate, 4) for name, rate in rates.items()}


def slowest_links(measured: Sequence[AllReduce]) -> Mapping[str, AllReduce]:
    """Return communication → its slowest link, an all-reduce of two workers."""
    by_name: dict[str, list[AllReduce]] = {}
    for all_reduce in measured:
        if len(all_reduce.workers) == 2:
            by_name.setdefault(all_reduce.communication, []).append(all_reduce)
    return {name: max(links, key=lambda link: link.seconds) for name, links in by_name.items()}


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The result of a preflight."""

    nodes: tuple[str, ...]
    seen: tuple[ProbeAnswer, ...]
    """The answers of the nodes that gave one."""
    findings: tuple[Finding, ...]
    """The fatal ones first."""
    notes: tuple[str, ...] = ()
    """Sentences to show: when a scheduler would start the job, what was not measured."""
    all_reduces: tuple[AllReduce, ...] = ()

    @classmethod
    def of_job(cls, backend: str, outlook: Outlook) -> PreflightReport:
        """Return the report of the scheduler of `backend`, as if it were a node."""
        notes = (outlook.starts,) if outlook.starts else ()
        return cls((backend,), (), (), notes).with_more(
            Finding(backend, o.check, o.what, o.fix, o.is_fatal) for o in outlook.obstacles
        )

    @classmethod
    def of(cls, answers: Sequence[ProbeAnswer], needs: Needs) -> PreflightReport:
        """Return the report of nodes that all gave an answer."""
        return cls(tuple(a.node for a in answers), tuple(answers), judge(answers, needs))

    @property
    def fatal(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_fatal)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that do not stop a start."""
        return tuple(finding for finding in self.findings if not finding.is_fatal)

    def with_more(self, findings: Iterable[Finding]) -> PreflightReport:
        """Return this report with `findings` added, without duplicates."""
        merged: dict[tuple[str, str, str], Finding] = {}
        for finding in (*findings, *self.findings):
            merged.setdefault((finding.node, finding.check, finding.what), finding)
        ordered = sorted(merged.values(), key=lambda finding: not finding.is_fatal)
        return replace(self, findings=tuple(ordered))

    def with_nodes(self, other: PreflightReport) -> PreflightReport:
        """Return this report with the nodes of `other`, their answers and findings."""
        return replace(
            self,
            nodes=tuple(dict.fromkeys((*self.nodes, *other.nodes))),
            seen=(*self.seen, *other.seen),
            notes=(*self.notes, *other.notes),
            all_reduces=(*self.all_reduces, *other.all_reduces),
        ).with_more(other.findings)

    def require(self) -> None:
        """Raise PreflightError if there are fatal findings; it lists them all."""
        if self.fatal:
            raise PreflightError([(f.node, f.what, f.fix) for f in self.fatal])

    def to_json(self) -> dict[str, Any]:
        """Return the report as ``doctor --json`` prints it; `typed_json.from_json` reads it."""
        slowest = slowest_links(self.all_reduces)
        links = {name: list(link.workers) for name, link in slowest.items()}
        return {"ok": not self.fatal, **object_to_json(self), "slowest_links": links}


def read_report(paths: RunPaths) -> PreflightReport | None:
    """Return the preflight report in a run's folder, or None."""
    try:
        return from_json(PreflightReport, foreign_json.read_json_object(paths.preflight))
    except (OSError, ValueError):
        return None
