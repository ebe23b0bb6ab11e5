"""Checks of a job before it is submitted to Slurm: its partition, its limits, its nodes.

`sbatch --test-only` decides: it knows hidden partitions and what a site's plugins change. `judge`
compares the job with what the cluster has (pure), and says why Slurm refuses it. Only a time limit
above the partition's is refused here: Slurm takes such a job, unless the cluster has
EnforcePartLimits set, and shows the reason in squeue alone.
"""

from __future__ import annotations

import difflib
import grp
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.backends.base import Tell
from tfcluster.backends.jobs import FAR_S, Obstacle, Outlook, Submission
from tfcluster.backends.slurm.batch_script import (
    explain_cores,
    format_script,
    format_setup,
    gpus_per_node,
    job_options,
    parts,
    resource_options,
    section_of,
)
from tfcluster.backends.slurm.slurm_commands import (
    SlurmSilentError,
    ask,
    clean_environ,
    parse_pairs,
    plain,
    refusal,
)
from tfcluster.errors import SetupError, join_first
from tfcluster.plans.secrets import find_variables

if TYPE_CHECKING:
    pass

_UNITS = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
_DOWN = re.compile(r"down|drain|drng|fail|maint|unk|inval|err|.*\*")
"""Compact states of nodes that start no job (sinfo(1), NODE STATE CODES)."""
_OWN_DISKS = ("ext4", "ext3", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "ramfs")
"""File systems that other machines see only if this one exports them."""
_IN_MEMORY = ("tmpfs", "ramfs")
_PROBE_TIME_S = 300.0
_TEST = re.compile(r"to start at (\d+) using \d+ processors on nodes (\S+) in partition (\S+)")
"""The line in which ``sbatch --test-only`` says that it takes a job."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a partition, as sinfo lists it."""

    partition: str
    host: str
    cores: int
    memory_mb: int
    gpus: int
    features: frozenset[str]
    is_up: bool


def check(job: Submission, *, thorough: bool) -> Outlook:
    """Have Slurm test the job, and explain its refusal; see `backends.jobs.Jobs.check`."""
    try:
        partitions, nodes = _read_partitions(), _read_nodes()
        if without := _check_export(job, os.environ):
            return Outlook(tuple(without))
        said, refused, obstacles = "", None, list[Obstacle]()
        for part in parts(job):  # Slurm tests no heterogeneous job
            answer, refusal_of_part = _test(part)
            said, refused = said or answer, refused or refusal_of_part
            obstacles += judge(part, partitions, nodes, groups=_own_groups())
        if refused is None:
            obstacles = [obstacle for obstacle in obstacles if not obstacle.is_fatal]
            if match := _TEST.search(said):
                obstacles += _check_time(job, match[3], partitions.get(match[3], {}))
        if thorough:
            obstacles += [*_check_folder(job, nodes), *_check_associations(job)]
            if refused is None and (sentence := explain_cores(job)):
                fix = "--set runtime.slurm.cpus_per_task=16"
                obstacles.append(Obstacle("limits", sentence, fix, is_fatal=False))
    except SetupError as error:
        return Outlook((Obstacle("scheduler", error.message, error.fix),))
    is_explained = any(obstacle.is_fatal for obstacle in obstacles)
    if refused is not None and thorough and not is_explained:
        # Slurm refuses a test for nodes that are down, but takes the job itself.
        is_fatal = not any(obstacle.check in ("partition", "nodes") for obstacle in obstacles)
        obstacles.append(Obstacle("scheduler", refused.message, refused.fix, is_fatal))
    return Outlook(tuple(obstacles), "" if is_explained else read_estimate(said, time.time()))


def _test(job: Submission) -> tuple[str, SetupError | None]:
    """Return Slurm's answer to a test of the job, and its refusal; raises SlurmSilentError."""
    what, script = "Slurm would not take the job", format_script(job)
    options = ("--test-only", *job_options(job))
    try:
        return ask("sbatch", *options, what=what, stdin=script, reads_stderr=True), None
    except SlurmSilentError:
        raise
    except SetupError as error:
        return "", error


def _read_partitions() -> dict[str, Mapping[str, str]]:
    """Return name → fields of each partition, hidden ones included."""
    options = ("--all", "show", "partition", "--oneliner")
    shown = ask("scontrol", *options, what="Slurm cannot be asked")
    return {
        pairs["PartitionName"]: pairs for pairs in map(parse_pairs, shown.splitlines()) if pairs
    }


def _read_nodes() -> list[Node]:
    options = ("--all", "--Node", "--noheader", "--format=%R|%n|%c|%m|%t|%f|%G")
    listed = ask("sinfo", *options, what="the nodes cannot be listed")
    return [parse_node(line) for line in listed.splitlines()]


def parse_node(line: str) -> Node:
    """Parse a line of sinfo in the format above."""
    partition, host, cores, memory, state, features, gres = line.strip().split("|", 6)
    counts = re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres)
    return Node(
        partition=partition,
        host=host.partition(".")[0],
        cores=int(cores.rstrip("+")),
        memory_mb=int(memory.rstrip("+")),
        gpus=sum(map(int, counts)),
        features=frozenset(features.split(",")),
        is_up=not _DOWN.match(state),
    )


def _own_groups() -> frozenset[str] | None:
    """Return the names of this user's groups; None for root, who may use all partitions."""
    if os.geteuid() == 0:
        return None
    numbers = {os.getegid(), *os.getgroups()}
    return frozenset(group.gr_name for group in grp.getgrall() if group.gr_gid in numbers)


def judge(
    job: Submission,
    partitions: Mapping[str, Mapping[str, str]],
    nodes: Collection[Node],
    *,
    groups: Collection[str] | None,
) -> list[Obstacle]:
    """Return the obstacles in the job's partition; of several partitions, one without is enough.

    `groups`: the user's; None for root.
    """
    names = _named(job, partitions)
    listed = join_first(sorted(n for n, pairs in partitions.items() if not _is(pairs, "Hidden")))
    if not names:
        fix = f"--set {section_of(job)}.partition=NAME, one of {listed}"
        return [Obstacle("partition", "the cluster has no default partition", fix)]
    for name in names:
        if name not in partitions:
            near = difflib.get_close_matches(name, partitions, n=1)
            fix = f"--set {section_of(job)}.partition={near[0]}" if near else f"use one of {listed}"
            return [Obstacle("partition", f"there is no partition {name}", fix)]
    by_partition = [
        [
            *_check_access(job, name, partitions[name], groups),
            *_check_limits(job, name, partitions[name]),
            *_check_nodes(job, name, [node for node in nodes if node.partition == name]),
        ]
        for name in names
    ]
    return min(by_partition, key=lambda obstacles: sum(obstacle.is_fatal for obstacle in obstacles))


def _named(job: Submission, partitions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the partitions that the job names, or the default one."""
    named = job.runtime.slurm.partition
    return named.split(",") if named else [n for n, p in partitions.items() if _is(p, "Default")]


def _is(pairs: Mapping[str, str], name: str) -> bool:
    return pairs.get(name) == "YES"


def _check_access(
    job: Submission, name: str, pairs: Mapping[str, str], groups: Collection[str] | None
) -> Iterator[Obstacle]:
    option = f"--set {section_of(job)}.partition=NAME"
    other = f"choose another partition (`sinfo -s` lists them): {option}"
    state = pairs.get("State", "UP")
    if state != "UP":
        problem = f"partition {name} is {state}: "
        starts_later = state == "DOWN"
        problem += "a job waits in it until it is up" if starts_later else "it takes no jobs"
        yield Obstacle("partition", problem, other, is_fatal=not starts_later)
    allowed = pairs.get("AllowGroups", "ALL")
    if groups is not None and allowed != "ALL" and not {*allowed.split(",")} & {*groups}:
        yield Obstacle("partition", f"only the groups {allowed} may use partition {name}", other)
    if groups is not None and _is(pairs, "RootOnly"):
        yield Obstacle("partition", f"only root may use partition {name}", other)
    for field, key in (("account", "AllowAccounts"), ("qos", "AllowQos")):
        value, allowed = getattr(job.runtime.slurm, field), pairs.get(key, "ALL")
        if value is not None and allowed != "ALL" and value not in allowed.split(","):
            problem = f"partition {name} is not for {field} {value}"
            yield Obstacle("partition", problem, f"--set runtime.slurm.{field}: one of {allowed}")


def _check_time(job: Submission, name: str, pairs: Mapping[str, str]) -> Iterator[Obstacle]:
    wanted, limit = job.runtime.slurm.time, parse_time(pairs.get("MaxTime", ""))
    if wanted is not None and limit is not None and wanted > limit:
        most = f"{limit / 60:.0f}m"
        problem = f"a job in partition {name} runs for at most {most}, not {wanted / 60:.0f}m"
        yield Obstacle("limits", problem, f"--set runtime.slurm.time={most}, or another partition")


def _check_limits(job: Submission, name: str, pairs: Mapping[str, str]) -> Iterator[Obstacle]:
    yield from _check_time(job, name, pairs)
    most_nodes = pairs.get("MaxNodes", "")
    if most_nodes.isdecimal() and job.nodes > int(most_nodes):
        problem = (
            f"a job in partition {name} gets at most {_nodes(most_nodes)}, and needs {job.nodes}"
        )
        fix = f"--set {section_of(job)}.tasks_per_node=2 or more, or another partition"
        yield Obstacle("limits", problem, fix)


def parse_time(text: str) -> float | None:
    """Return the seconds of Slurm's ``[days-]hours:minutes:seconds``; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86400.0 + hours * 3600 + minutes * 60 + seconds


def _check_nodes(job: Submission, name: str, nodes: Sequence[Node]) -> Iterator[Obstacle]:
    where = f"nodes of partition {name}"
    if len(nodes) < job.nodes:
        problem = f"partition {name} has {_nodes(len(nodes))}, and the tasks need {job.nodes}"
        yield Obstacle("nodes", problem, f"--set {section_of(job)}.tasks_per_node=2 or more")
        return
    suiting = list(nodes)
    for unit, field, wanted, has in _requests(job):
        enough = [node for node in nodes if getattr(node, has) >= wanted]
        if len(enough) < job.nodes:
            most = max(getattr(node, has) for node in nodes)
            problem = (
                f"{len(enough)} of the {len(nodes)} {where} have {wanted} {unit} (most: {most})"
            )
            fix = f"lower {section_of(job)}.{field}, for all tasks of a node together"
            yield Obstacle("nodes", problem, fix)
            return
        suiting = [node for node in suiting if node in enough]
    feature = job.runtime.slurm.constraint or ""
    if re.fullmatch(r"[\w.-]+", feature):
        have = [node for node in nodes if feature in node.features]
        if len(have) < job.nodes:
            problem = f"{len(have)} of the {len(nodes)} {where} have the feature {feature}"
            features = "features that nodes have (`sinfo -o '%N %f'`)"
            fix = f"set {section_of(job)}.constraint to {features}"
            yield Obstacle("nodes", problem, fix)
            return
        suiting = [node for node in suiting if node in have]
    if len(suiting) < job.nodes:
        problem = (
            f"{len(suiting)} of the {len(nodes)} {where} have all that {section_of(job)} asks for"
        )
        yield Obstacle("nodes", problem, "`sinfo -N -o '%N %c %m %G %f'` shows what each node has")
    elif (up := sum(node.is_up for node in suiting)) < job.nodes:
        problem = (
            f"{up} of the {len(suiting)} suitable {where} are up: the job waits for {job.nodes}"
        )
        yield Obstacle("nodes", problem, "`sinfo -R` shows why the others are not", is_fatal=False)


def _nodes(count: int | str) -> str:
    return f"{count} node" if str(count) == "1" else f"{count} nodes"


def _requests(job: Submission) -> Iterator[tuple[str, str, int, str]]:
    """Yield unit, field, number and the attribute of `Node` of each request for a node."""
    settings, each = job.runtime.slurm, job.tasks_per_node
    yield "cores", "cpus_per_task", each * (settings.cpus_per_task or 1), "cores"
    yield "GPUs", "gpus_per_task", gpus_per_node(job), "gpus"
    if settings.mem:
        number, unit = re.fullmatch(r"(\d+)(\D?)", settings.mem).groups()  # type: ignore[union-attr]
        yield "MB of memory", "mem", int(int(number) * _UNITS[unit or "m"]), "memory_mb"


def _check_export(job: Submission, environ: Mapping[str, str]) -> list[Obstacle]:
    """Return the obstacle of a job that does not get variables without which it cannot begin."""
    settings = job.runtime.slurm
    given = [word.partition("=")[2] for word in settings.extra if word.startswith("--export=")]
    exported = (given or [environ.get("SBATCH_EXPORT", "ALL")])[-1]
    words = {word.partition("=")[0] for word in exported.split(",")}
    tasks = job.plan.tasks if job.plan is not None else ()
    variables = (variable for task in tasks for variable in task.command.env)
    needed = {v.name for v in variables if v.from_launcher}
    needed |= find_variables(job.plan).keys() if job.plan is not None else set()
    if "ALL" in words or not (lacking := sorted(needed - words)):
        return []
    option = "--export" if given else "SBATCH_EXPORT"
    problem = f"{option}={exported} keeps {join_first(lacking)} of your shell from the job"
    return [Obstacle("scheduler", problem, 'add "--export=ALL" to runtime.slurm.extra')]


def _check_folder(job: Submission, nodes: Collection[Node]) -> Iterator[Obstacle]:
    """Judge the file system of the run folder, where tasks run on other machines than this one."""
    own = socket.gethostname().partition(".")[0]
    if all(node.host == own for node in nodes):
        return
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        kind = find_file_system(file.read(), str(job.folder))
    if kind in _OWN_DISKS:
        runs = job.folder.parent
        problem = f"run folders are on a file system of this machine ({kind}): {runs}"
        fix = "if the nodes do not see it, set TFCLUSTER_HOME to a folder that they share"
        yield Obstacle("run folder", problem, fix, is_fatal=kind in _IN_MEMORY)


def find_file_system(mountinfo: str, path: str) -> str:
    """Return the type of the file system of `path` (proc(5), mountinfo)."""
    mounts = (line.partition(" - ") for line in mountinfo.splitlines())
    kinds = {head.split()[4].rstrip("/"): tail.split()[0] for head, _, tail in mounts}
    above = path
    while above and above not in kinds:
        above = above.rpartition("/")[0]
    return kinds.get(above, "")


def _check_associations(job: Submission) -> Iterator[Obstacle]:
    """Compare the job with the user's associations, where the cluster has accounting.

    Whether these limits are enforced is not known, so nothing here is fatal.
    """
    columns = "format=Account,Partition,MaxWall"
    try:
        shown = ask(
            *("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "associations"),
            *("where", f"user={os.environ.get('USER', '')}", columns),
            what="no accounting",
        )
    except SetupError:
        return
    yield from judge_associations(job, shown)


def judge_associations(job: Submission, shown: str) -> Iterator[Obstacle]:
    """Yield notes about the user's associations, as sacctmgr shows them."""
    rows = [line.split("|") for line in shown.splitlines() if line.count("|") == 2]
    settings = job.runtime.slurm
    accounts = sorted({row[0] for row in rows})
    if rows and settings.account is not None and settings.account not in accounts:
        problem = f"you have no association with account {settings.account}"
        fix = f"--set runtime.slurm.account: one of {join_first(accounts)}"
        yield Obstacle("limits", problem, fix, is_fatal=False)
    own = [row for row in rows if settings.account in (None, row[0])]
    limits = [limit for row in own if (limit := parse_time(row[2])) is not None]
    if settings.time is not None and limits and settings.time > max(limits):
        most = f"{max(limits) / 60:.0f}m"
        problem = f"your account's jobs run for at most {most}, not {settings.time / 60:.0f}m"
        yield Obstacle("limits", problem, f"--set runtime.slurm.time={most}", is_fatal=False)


def read_estimate(said: str, now: float) -> str:
    """Return when and where Slurm would start the job, from ``sbatch --test-only``."""
    if (match := _TEST.search(said)) is None:
        return ""
    starts, nodes, partition = float(match[1]), match[2], match[3]
    if starts > now + FAR_S:
        return f"Slurm would take the job for partition {partition}, and cannot say when it starts"
    if starts <= now + 60:
        when = "now"
    else:
        when = f"at about {time.strftime('%Y-%m-%d %H:%M', time.localtime(starts))}"
    where = f"on {nodes} in partition {partition}"
    return f"Slurm would start the job {when} {where}"


def run_inside(job: Submission, argv: Sequence[str], folder: Path, *, tell: Tell) -> None:
    """Run a Python in an allocation of at most five minutes (`backends.jobs.Jobs.run_inside`)."""
    argv = [sys.executable, *argv, str(folder)]
    partitions, settings = _read_partitions(), job.runtime.slurm
    known = (partitions.get(name, {}) for name in _named(job, partitions))
    limits = (settings.time, *(parse_time(pairs.get("MaxTime", "")) for pairs in known))
    time_s = min(limit or _PROBE_TIME_S for limit in (*limits, _PROBE_TIME_S))
    short = settings.model_copy(update={"time": time_s})
    brief = replace(job, runtime=job.runtime.model_copy(update={"slurm": short}))
    lines: list[str] = []
    if settings.setup:
        script = "".join([*format_setup(settings), 'exec "$@"'])
        argv = ["bash", "-lc", script, "bash", *argv]
    with subprocess.Popen(
        ["salloc", "--no-bell", *resource_options(brief), "--", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=clean_environ(os.environ),
    ) as process:
        try:
            for line in process.stderr or ():
                lines.append(line)
                if "queued and waiting" in line:
                    tell(f"waiting for nodes: {plain(line)}")
        except BaseException:  # Ctrl-C
            process.terminate()
            raise
    if process.returncode:
        raise refusal("the nodes cannot be probed", "".join(lines))
