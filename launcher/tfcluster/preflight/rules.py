"""Rules that find what is wrong with the nodes of a run, from each node's probe answer (pure).

TensorFlow reports the same problems after an hour, or without naming the host. Sources of the
rules: unequal versions tensorflow#34156, unequal GPUs #47203 and #60847, unreachable peers #46931.
The module holds the values (`Finding`, `Needs`, `PreflightReport`) and `judge`, which applies the
rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tfcluster.agent import foreign_json
from tfcluster.errors import PreflightError
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.plan.keras_settings import is_from_2_16
from tfcluster.plan.plan import Plan
from tfcluster.rundir.paths import RunPaths

_LEAST_BYTES = 1_000_000_000
_LEAST_SHM_BYTES = 64_000_000
_MOST_SKEW_S = 5.0

VERSIONS = {
    "TensorFlow": "tensorflow",
    "Keras": "keras",
    "tf_keras": "tf-keras",
    "NumPy": "numpy",
    "protobuf": "protobuf",
}
"""Row of the table → package. Those of the first three must be equal."""
_MAY_DIFFER = ("NumPy", "protobuf")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one node; what `is_fatal` ends the run before it begins."""

    node: str
    check: str
    """Row of the table: ``TensorFlow``, ``port``, ``clock`` …"""
    what: str
    fix: str
    is_fatal: bool = True


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job asks of the nodes it runs on."""

    tensorflow: bool = True
    estimator: bool = False
    """The job uses ``tf.estimator``."""
    gang: bool = True
    """The nodes train as one, so that they must be alike; not so parameter servers, tuners, and
    commands whose Python nobody knows."""
    nccl: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Node → its tasks that reduce with NCCL."""
    gpu_indexes: Mapping[str, int] = field(default_factory=dict)
    """Node → the highest index of a GPU that its tasks are given by the spec."""
    script_sha256: str | None = None
    """Of the job's script here."""
    writes: str | None = None
    """The folder in which every node must be able to write."""


def needs_of(plan: Plan, script_sha256: str | None = None) -> Needs:
    """What `plan` asks for."""
    known = all(node.interpreter is not None for node in plan.nodes)
    nccl: dict[str, list[str]] = {}
    highest: dict[str, int] = {}
    for task in plan.tasks:
        if plan.settings.get("communication") == "NCCL" and task.id.job in ("chief", "worker"):
            nccl.setdefault(task.node, []).append(str(task.id))
        if task.gpus:
            highest[task.node] = max(highest.get(task.node, 0), *task.gpus)
    return Needs(
        tensorflow=plan.needs_tensorflow,
        estimator=plan.needs_estimator,
        gang=known and plan.kind == "training" and plan.strategy == "multi_worker_mirrored",
        nccl=nccl,
        gpu_indexes=highest,
        script_sha256=script_sha256,
        writes=plan.checkpoints.dir,
    )


def judge(
    seen: Sequence[ProbeAnswer], needs: Needs, *, silent: Collection[str] = ()
) -> tuple[Finding, ...]:
    """All findings, the fatal ones first. `silent`: nodes that gave no report, so that others
    could not reach them either."""
    found: list[Finding] = []
    for one in seen:
        found += [
            *_python(one, needs),
            *_network(one, silent),
            *_storage(one, needs),
            *_gpus(one, needs),
        ]
        found += _clock(one)
    found += _together(seen, needs) if needs.gang else ()
    return tuple(sorted(found, key=lambda finding: not finding.is_fatal))


def _python(one: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if needs.tensorflow and "tensorflow" not in one.packages:
        fix = f"name a Python that has it: {_field_of_python(one.node)}"
        yield Finding(one.node, "TensorFlow", "its Python has no TensorFlow", fix)
    if needs.estimator and is_from_2_16(one.packages):
        what = f"tf.estimator ended with TensorFlow 2.15, and it has {one.packages['tensorflow']}"
        fix = f"name a Python with TensorFlow 2.15: {_field_of_python(one.node)}"
        yield Finding(one.node, "TensorFlow", what, fix)
    if one.imported is not None and "error" in one.imported and "tensorflow" in one.packages:
        what = f"import tensorflow fails: {one.imported['error']}"
        fix = f"try it there: {one.executable} -c 'import tensorflow'"
        yield Finding(one.node, "import", what, fix)


def _field_of_python(node: str) -> str:
    return "--python PATH" if node == "local" else f"runtime.hosts.{node}.python"


def _network(one: ProbeAnswer, silent: Collection[str]) -> Iterator[Finding]:
    for host in one.strange_names:
        fix = "correct the name (DNS, /etc/hosts) there, or write the address"
        yield Finding(one.node, "names", f"{host} is not one of its own addresses", fix)
    for port, why in one.not_listening:
        what = f"nothing can listen on port {port}: {why}"
        yield Finding(one.node, "ports", what, "write another port in the spec (0 = choose one)")
    for node, task, host, port, why in one.unreachable:
        if node in silent:
            continue
        what = f"{task} ({host}:{port}) cannot be reached from there: {why}"
        fix = "open that port between the two (firewall, security group), or write another"
        yield Finding(one.node, "peers", what, fix)


def _storage(one: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if one.free_bytes is not None and one.free_bytes < _LEAST_BYTES:
        left = f"{one.free_bytes / 1e6:.0f} MB"
        yield Finding(one.node, "disk", f"only {left} of disk are free", "make room", False)
    if one.shm_bytes is not None and one.shm_bytes < _LEAST_SHM_BYTES and one.gpus:
        what = f"only {one.shm_bytes / 1e6:.0f} MB of /dev/shm are free"
        fix = "NCCL shares memory there: mount a larger one (docker: --shm-size=1g)"
        yield Finding(one.node, "/dev/shm", what, fix, False)
    for folder, why in one.unwritable:
        is_fatal = folder == needs.writes  # a data set may be there already, read-only
        fix = "make it writable for the user of the tasks, or name another"
        yield Finding(one.node, "folders", f"{folder} cannot be written: {why}", fix, is_fatal)
    ours, theirs = needs.script_sha256, one.script_sha256
    if ours is not None and theirs is not None and ours != theirs:
        fix = "its working directory must hold the code that is here: is the mount the same?"
        yield Finding(one.node, "script", "the script there is not the one here", fix)


def _gpus(one: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if one.gpu_trouble:
        fix = "look at the driver: nvidia-smi, dmesg | grep -i nvrm"
        yield Finding(one.node, "GPUs", one.gpu_trouble, fix, False)
        return
    if (tasks := needs.nccl.get(one.node)) and not one.gpus:
        what = f"strategy.communication is NCCL, and there is no GPU for {', '.join(tasks)}"
        yield Finding(one.node, "GPUs", what, "--set strategy.communication=RING, or AUTO")
    elif (highest := needs.gpu_indexes.get(one.node, -1)) >= len(one.gpus):
        what = f"GPU {highest} is asked for, and it has {len(one.gpus) or 'none'}"
        yield Finding(one.node, "GPUs", what, "correct resources.gpus, or the gpus of its tasks")


def _clock(one: ProbeAnswer) -> Iterator[Finding]:
    if abs(one.clock_ahead_s) > _MOST_SKEW_S:
        what = f"its clock differs from ours by {one.clock_ahead_s:+.0f} s"
        yield Finding(one.node, "clock", what, "set it by NTP: times in logs mislead", False)


def _together(seen: Sequence[ProbeAnswer], needs: Needs) -> Iterator[Finding]:
    """Versions and GPUs, against what most nodes have."""
    equipped = [one for one in seen if "tensorflow" in one.packages or not needs.tensorflow]
    for row, package in VERSIONS.items():
        having = {one.node: one.packages.get(package, "none") for one in equipped}
        yield from _odd(row, having, is_fatal=row not in _MAY_DIFFER)
    yield from _odd("Python", {one.node: one.python.rpartition(".")[0] for one in seen})
    known = [one for one in seen if not one.gpu_trouble]
    yield from _odd("GPUs", {one.node: shown_gpus(one.gpus) for one in known})


def _odd(what: str, having: Mapping[str, str], *, is_fatal: bool = True) -> Iterator[Finding]:
    counted = Counter(having.values()).most_common()
    if len(counted) < 2:
        return
    usual = counted[0][0]
    for node, value in having.items():
        if value != usual:
            text = f"{what} is {value} there, {usual} on the others"
            yield Finding(node, what, text, "all nodes must have the same", is_fatal)


def shown_gpus(gpus: Sequence[str]) -> str:
    """``2 × NVIDIA H200``."""
    return ", ".join(f"{count} × {name}" for name, count in Counter(gpus).items()) or "none"


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """Of each node what was seen, where it could be looked at, and what is wrong with it."""

    nodes: tuple[str, ...]
    seen: tuple[ProbeAnswer, ...]
    findings: tuple[Finding, ...]
    """The fatal ones first."""

    @property
    def fatal(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_fatal)

    @property
    def told(self) -> tuple[Finding, ...]:
        """What stops nothing."""
        return tuple(finding for finding in self.findings if not finding.is_fatal)

    def with_more(self, findings: Iterable[Finding]) -> PreflightReport:
        """`findings`, too; of one thing about one node the first is enough."""
        merged: dict[tuple[str, str, str], Finding] = {}
        for finding in (*findings, *self.findings):
            merged.setdefault((finding.node, finding.check, finding.what), finding)
        ordered = sorted(merged.values(), key=lambda finding: not finding.is_fatal)
        return PreflightReport(self.nodes, self.seen, tuple(ordered))

    def require(self) -> None:
        """Raises PreflightError for all that is fatal."""
        if self.fatal:
            raise PreflightError([(f.node, f.what, f.fix) for f in self.fatal])

    def to_json(self) -> dict[str, Any]:
        """As ``doctor --json`` prints it; read back by `from_json`."""
        return {
            "ok": not self.fatal,
            "nodes": list(self.nodes),
            "seen": [asdict(one) for one in self.seen],
            "findings": [asdict(finding) for finding in self.findings],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PreflightReport:
        """Raises KeyError or TypeError for anything else."""
        return cls(
            tuple(data["nodes"]),
            tuple(ProbeAnswer(**one) for one in data["seen"]),
            tuple(Finding(**one) for one in data["findings"]),
        )


def first_seen(seen: Sequence[ProbeAnswer], node: str) -> ProbeAnswer | None:
    """The report of `node`, if it gave one."""
    return next((one for one in seen if one.node == node), None)


def read_report(paths: RunPaths) -> PreflightReport | None:
    """What a run saw before its start; None where it did not look."""
    try:
        return PreflightReport.from_json(foreign_json.read_json_object(paths.preflight))
    except (OSError, ValueError, KeyError, TypeError):
        return None
