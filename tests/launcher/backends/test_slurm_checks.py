"""A job that Slurm would take but never start is refused, from what scontrol and sinfo print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.backends.conftest import Stub

from tfcluster.backends.jobs import Obstacle, Submission
from tfcluster.backends.slurm import slurm_checks, slurm_jobs
from tfcluster.backends.slurm.slurm_commands import parse_pairs
from tfcluster.errors import SetupError
from tfcluster.plans.build import make_plan
from tfcluster.plans.context import PlanContext
from tfcluster.plans.placement import place_tasks
from tfcluster.spec.model import ClusterSpec
from tfcluster.spec.sections import Runtime

PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO"
    " QoS=N/A DefaultTime=NONE DisableRootJobs=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED"
    " MaxTime=UNLIMITED MinNodes=0 Nodes=n[1-3] RootOnly=NO State=UP TotalCPUs=12 TotalNodes=3"
)
"""What ``scontrol show partition --oneliner`` of Slurm 22.05 prints, shortened."""
NODES = [
    *("main|n1|4|2000|idle|(null)|(null)", "main|n2|4|2000|mix|fast|(null)"),
    "main|n3|4|2000|idle*|fast,big|(null)",
    *(
        "gpu|g1.example.org|64|512000|alloc|a100|gpu:a100:8(S:0-1)",
        "gpu|g2|64|512000|down~|x|gpu:4",
    ),
    "short|n1|4|2000|idle|(null)|(null)",
]


ESTIMATE = (
    "grep -q '#SBATCH --nodes=2' &&"
    " echo 'to start at 1 using 2 processors on nodes n1 in partition main' >&2"
)


def partitions(**changes: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return main (the default), gpu and short, with changes of their fields."""
    changes.setdefault("main", {})["Default"] = "YES"
    names = ("main", "gpu", "short")
    plain = {name: parse_pairs(PARTITION.format(name=name)) for name in names}
    return {name: pairs | changes.get(name, {}) for name, pairs in plain.items()}


def judged(
    *,
    nodes: int = 2,
    each: int = 1,
    groups: Sequence[str] | None = ("users",),
    changes: dict[str, dict[str, str]] | None = None,
    **slurm: Any,
) -> list[Obstacle]:
    job = submission(nodes=nodes, each=each, **slurm)
    listed = [slurm_checks.parse_node(line) for line in NODES]
    return slurm_checks.judge(job, partitions(**(changes or {})), listed, groups=groups)


def submission(*, nodes: int = 2, each: int = 1, **slurm: Any) -> Submission:
    runtime = Runtime.model_validate({"backend": "slurm", "slurm": slurm})
    return Submission("demo-1", Path("/shared/demo-1"), ("true",), runtime, nodes, each)


@pytest.mark.parametrize(
    "slurm",
    [
        {},
        {"time": "30d", "cpus_per_task": 4, "mem": "2000m", "account": "vision", "qos": "high"},
        {"mem": "0", "constraint": "fast|big"},
        {"partition": "gpu", "gpus_per_task": 4, "mem": "500g"},
    ],
    ids=str,
)
def test_a_job_that_fits_meets_no_obstacle_that_stops_it(slurm: dict[str, Any]) -> None:
    assert [o for o in judged(**slurm) if o.is_fatal] == []


def main(**fields: str) -> dict[str, Any]:
    return {"changes": {"main": fields}}


NEVER: list[tuple[dict[str, Any], str, str, str]] = [
    ({"partition": "gpuu"}, "partition", "there is no partition gpuu", "slurm.partition=gpu"),
    ({"partition": "zzz"}, "partition", "no partition zzz", "gpu, main, short"),
    (main(State="DRAIN"), "partition", "main is DRAIN: it takes no jobs", "partition=NAME"),
    (main(AllowGroups="staff,admin"), "partition", "only the groups staff,admin may", "sinfo -s"),
    (main(RootOnly="YES"), "partition", "only root", "sinfo -s"),
    ({"account": "x"} | main(AllowAccounts="vision"), "partition", "not for account x", "vision"),
    ({"time": "1h"} | main(MaxTime="00:05:00"), "limits", "at most 5m, not 60m", "slurm.time=5m"),
    ({"time": "3d"} | main(MaxTime="1-12:00:00"), "limits", "at most 2160m", "time=2160m"),
    (main(MaxNodes="1"), "limits", "gets at most 1 node, and needs 2", "tasks_per_node"),
    ({"nodes": 9}, "nodes", "has 3 nodes, and the tasks need 9", "tasks_per_node"),
    ({"partition": "short"}, "nodes", "has 1 node, and the tasks need 2", "tasks_per_node"),
    ({"cpus_per_task": 3, "each": 2}, "nodes",
     "0 of the 3 nodes of partition main have 6 cores (most: 4)", "runtime.slurm.cpus_per_task"),
    ({"each": 5}, "nodes", "have 5 cores", "cpus_per_task"),
    ({"partition": "gpu", "gpus_per_task": 8}, "nodes",
     "1 of the 2 nodes of partition gpu have 8 GPUs (most: 8)", "runtime.slurm.gpus_per_task"),
    ({"mem": "2g"}, "nodes", "have 2048 MB of memory", "runtime.slurm.mem"),
    ({"constraint": "big"}, "nodes", "1 of the 3 nodes of partition main have the feature", "%f"),
    ({"partition": "gpu", "constraint": "x", "gpus_per_task": 8, "nodes": 1}, "nodes",
     "0 of the 2 nodes of partition gpu have all", "sinfo -N"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "check", "what", "fix"), NEVER, ids=str)
def test_what_can_never_start_is_named_with_its_fix(
    options: dict[str, Any], check: str, what: str, fix: str
) -> None:
    (obstacle,) = [obstacle for obstacle in judged(**options) if obstacle.is_fatal]
    assert obstacle.check == check
    assert what in obstacle.what
    assert fix in obstacle.fix


def test_what_may_start_later_does_not_stop_a_job() -> None:
    down = judged(partition="main", changes={"main": {"State": "DOWN"}})
    waiting = judged(nodes=3)
    assert [(o.check, o.is_fatal) for o in (*down, *waiting)] == [
        ("partition", False),
        ("nodes", False),
    ]
    assert "2 of the 3 suitable nodes of partition main are up" in waiting[0].what


def test_one_of_several_partitions_is_enough_and_root_may_use_each() -> None:
    limited = main(AllowGroups="staff", RootOnly="YES")
    assert judged(groups=None, **limited) == []
    only = {"gpu": parse_pairs(PARTITION.format(name="gpu"))}
    (obstacle,) = slurm_checks.judge(submission(), only, [], groups=None)
    assert (obstacle.what, "gpu" in obstacle.fix) == ("the cluster has no default partition", True)
    assert not any(obstacle.is_fatal for obstacle in judged(partition="short,main"))
    assert any(obstacle.is_fatal for obstacle in judged(partition="short,gpu", gpus_per_task=8))


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:2", 2),
        ("gpu:a100:8(S:0-1)", 8),
        ("gpu:a100:2,gpu:v100:1,nvme:3", 3),
        ("shard:16,gpu:1g.5gb:7", 7),
    ],
)
def test_gpus_of_a_node_are_counted(gres: str, gpus: int) -> None:
    assert slurm_checks.parse_node(f"p|n1|4|2000|idle|(null)|{gres}").gpus == gpus


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/ann/runs", "nfs4"), ("/homes/x", "ext4"), ("/", "ext4"), ("/tmp/a/b", "tmpfs")],
)
def test_the_file_system_of_a_folder_is_that_of_the_mount_above_it(path: str, kind: str) -> None:
    mountinfo = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /home rw,relatime shared:4 - nfs4 srv:/home rw\n"
        "24 22 0:6 / /tmp rw - tmpfs tmpfs rw\n"
    )
    assert slurm_checks.find_file_system(mountinfo, path) == kind


@pytest.mark.linux("/proc/self/mountinfo")
def test_a_folder_in_memory_stops_a_job_for_other_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [slurm_checks.parse_node(NODES[0])]
    monkeypatch.setattr(slurm_checks, "find_file_system", lambda *_: "tmpfs")
    (obstacle,) = slurm_checks._check_folder(submission(), nodes)
    assert obstacle.is_fatal
    assert "TFCLUSTER_HOME" in obstacle.fix
    monkeypatch.setattr("socket.gethostname", lambda: "n1.example.org")
    assert list(slurm_checks._check_folder(submission(), nodes)) == []


def test_associations_are_compared_where_there_is_accounting() -> None:
    rows = "vision|gpu|1-00:00:00\nspeech||02:00:00\nroot|\n"

    def found(**slurm: Any) -> list[str]:
        obstacles = list(slurm_checks.judge_associations(submission(**slurm), rows))
        assert not any(obstacle.is_fatal for obstacle in obstacles)
        return [f"{obstacle.what} → {obstacle.fix}" for obstacle in obstacles]

    assert found(account="vision", time="20h") == []
    assert "no association with account x → --set runtime.slurm.account: one of speech" in "".join(
        found(account="x")
    )
    assert "at most 120m, not 1200m" in "".join(found(account="speech", time="20h"))
    assert list(slurm_checks.judge_associations(submission(account="x"), "")) == []


@pytest.mark.parametrize(
    ("starts", "shown"),
    [(1000, "now on"), (999, "now on"), (1795450317, "at about 2026-")],
)
def test_the_estimate_of_slurm_is_a_sentence(starts: float, shown: str) -> None:
    said = (
        f"sbatch: Job 29 to start at {starts:.0f} using 2 processors on nodes n[1-2] in partition m"
    )
    now = 1795450317 - 7200 if starts == 1795450317 else 1000
    sentence = slurm_checks.read_estimate(f"{said}\nsbatch:   Preempts: 27\n", now)
    assert sentence.startswith("Slurm would start the job")
    assert shown in sentence
    assert sentence.endswith("n[1-2] in partition m")
    assert slurm_checks.read_estimate("something else", now) == ""


def test_a_start_in_a_year_is_no_estimate() -> None:
    """Slurm counts a year for each running job without a time limit."""
    said = "Job 2 to start at 31537000 using 2 processors on nodes n[1-2] in partition m"
    expected = "Slurm would take the job for partition m, and cannot say when it starts"
    assert slurm_checks.read_estimate(said, 1000.0) == expected


@pytest.fixture
def stub(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Put stand-ins for Slurm's commands on PATH, which a test may replace."""
    monkeypatch.setattr(slurm_checks, "find_file_system", lambda *_: "nfs4")
    line = PARTITION.format(name="main").replace("Default=NO", "Default=YES")
    stub("scontrol", f"echo '{line}'")
    stub("sinfo", "printf '%s\\n' " + " ".join(f"'{line}'" for line in NODES))
    stub("sbatch", ESTIMATE)
    stub("sacctmgr", "exit 1")
    return stub


def test_what_slurm_takes_is_refused_only_for_its_time_limit(stub: Stub) -> None:
    """It knows partitions that are not listed, and where a plugin of the site puts the job."""
    start = "to start at 1 using 2 processors on nodes n1 in partition {}"
    stub("sbatch", f"echo '{start.format('hid')}' >&2")
    for strange in ({"partition": "hid"}, {"cpus_per_task": 9}, {"constraint": "zzz"}):
        assert slurm_checks.check(submission(**strange), thorough=False).obstacles == ()
    lines = [PARTITION.format(name=name) for name in ("main", "hid")]
    lines[1] = lines[1].replace("MaxTime=UNLIMITED", "MaxTime=00:05:00")
    stub("scontrol", "\n".join(f"echo '{line}'" for line in lines))
    (obstacle,) = slurm_checks.check(submission(time="1h"), thorough=False).obstacles
    assert (obstacle.what, obstacle.is_fatal) == (
        "a job in partition hid runs for at most 5m, not 60m",
        True,
    )


@pytest.mark.parametrize(
    ("environ", "extra", "what"),
    [
        ({}, [], ""),
        ({"SBATCH_EXPORT": "NONE"}, [], "SBATCH_EXPORT=NONE keeps PIN of your shell from the job"),
        ({"SBATCH_EXPORT": "NONE"}, ["--export=ALL"], ""),
        ({"SBATCH_EXPORT": "HOME,PIN"}, [], ""),
        ({"SBATCH_EXPORT": "ALL,A=1"}, [], ""),
        ({}, ["--export=NIL"], "--export=NIL keeps PIN of your shell from the job"),
    ],
    ids=str,
)
def test_a_secret_that_the_job_would_not_get_is_named(
    environ: dict[str, str], extra: list[str], what: str
) -> None:
    spec = {"cluster": {"worker": 1}, "job": {"script": "t.py", "secrets": ["PIN"]}}
    valid = ClusterSpec.model_validate(spec)
    tasks = place_tasks(valid, ())
    plan = make_plan(valid, PlanContext({"PIN": "1234"}, "/specs", tasks))
    job = replace(submission(extra=extra), plan=plan)
    assert [o.what for o in slurm_checks._check_export(job, environ)] == [what][: bool(what)]


def test_a_secret_of_the_spec_reaches_the_job_in_its_environment(stub: Stub) -> None:
    """The job plans again from a spec without it."""
    stub("sbatch", 'echo "$API_KEY $TFCLUSTER_ON_END"')
    job = {"script": "t.py", "env": {"API_KEY": "s3cret"}}
    spec = {"cluster": {"worker": 1}, "job": job, "supervision": {"on_end": "https://chat/x"}}
    valid = ClusterSpec.model_validate(spec)
    plan = make_plan(valid, PlanContext({}, "/specs", place_tasks(valid, ())))
    submitted = replace(submission(), plan=plan)
    assert slurm_jobs.submit(submitted) == "s3cret https://chat/x"
    (obstacle,) = slurm_checks._check_export(submitted, {"SBATCH_EXPORT": "NONE"})
    assert "keeps API_KEY, TFCLUSTER_ON_END of your shell" in obstacle.what


@pytest.mark.linux("/proc/self/mountinfo")
def test_sbatch_has_the_final_word(stub: Stub) -> None:
    stub("sbatch", "echo 'invalid partition specified: mian' >&2; exit 1")
    for thorough in (False, True):
        (obstacle,) = slurm_checks.check(submission(partition="mian"), thorough=thorough).obstacles
        assert obstacle.what == "there is no partition mian"
        assert obstacle.fix == "--set runtime.slurm.partition=main"
    stub("sbatch", ESTIMATE)
    assert slurm_checks.check(submission(), thorough=True).starts.startswith("Slurm would start")
    refused = "allocation failure: Requested reservation is invalid"
    stub("sbatch", f"echo '{refused}' >&2; exit 1")
    outlook = slurm_checks.check(submission(), thorough=True)
    assert [(o.what, o.is_fatal) for o in outlook.obstacles] == [
        ("Slurm would not take the job: Requested reservation is invalid", True)
    ]
    assert slurm_checks.check(submission(), thorough=False).obstacles == ()


@pytest.mark.linux("/proc/self/mountinfo")
def test_a_test_that_fails_for_nodes_that_are_down_does_not_stop_a_job(stub: Stub) -> None:
    stub("sbatch", "echo 'Requested node configuration is not available' >&2; exit 1")
    outlook = slurm_checks.check(submission(nodes=3), thorough=True)
    assert [(o.check, o.is_fatal) for o in outlook.obstacles] == [
        ("nodes", False),
        ("scheduler", False),
    ]


def test_a_silent_scheduler_is_an_obstacle(stub: Stub) -> None:
    stub("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    (obstacle,) = slurm_checks.check(submission(), thorough=False).obstacles
    assert (obstacle.check, "scontrol ping" in obstacle.fix) == ("scheduler", True)


def test_a_probe_waits_for_its_allocation_and_says_so(stub: Stub, tmp_path: Path) -> None:
    waits = "salloc: job 7 queued and waiting for resources"
    stub("salloc", f"echo \"$@\" > {tmp_path}/argv; echo '{waits}' >&2")
    said: list[str] = []
    job = submission(each=2, partition="gpu", time="12h", extra=["--exclusive"])
    slurm_checks.run_inside(job, ["-m", "x"], tmp_path, tell=said.append)
    assert said == ["waiting for nodes: job 7 queued and waiting for resources"]
    words = (tmp_path / "argv").read_text().split()
    assert {"--time=5", "--nodes=2", "--partition=gpu", "--exclusive"} <= {*words}
    assert words[-5:] == ["--", sys.executable, "-m", "x", str(tmp_path)]
    refused = "salloc: error: Job submit/allocate failed: Invalid qos"
    stub("salloc", f"echo '{refused}' >&2; exit 1")
    with pytest.raises(SetupError, match="cannot be probed: Invalid qos"):
        slurm_checks.run_inside(job, ["-m", "x"], tmp_path, tell=said.append)


def test_a_user_s_own_defaults_do_not_override_the_spec(stub: Stub, tmp_path: Path) -> None:
    """Of sbatch, variables override options in a script, but not those of the command line."""
    stub("sbatch", f"echo $@ > {tmp_path}/options; echo '17;lab'")
    job = submission(partition="gpu", extra=["--export=ALL"])
    assert slurm_jobs.submit(job) == "17"
    words = (tmp_path / "options").read_text().split()
    assert {"--parsable", "--partition=gpu", "--requeue", "--export=ALL"} <= {*words}


def test_a_probe_does_not_ask_for_more_time_than_its_partition_gives(
    stub: Stub, tmp_path: Path
) -> None:
    stub("salloc", f"echo $@ > {tmp_path}/argv")
    line = PARTITION.format(name="gpu").replace("MaxTime=UNLIMITED", "MaxTime=00:02:00")
    stub("scontrol", f"echo '{line}'")
    slurm_checks.run_inside(submission(partition="gpu"), [], tmp_path, tell=lambda _: None)
    assert "--time=2" in (tmp_path / "argv").read_text().split()
