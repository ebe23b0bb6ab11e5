"""Hosts of the command line: host files, host lists, ``--include`` and ``--exclude``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfcluster.errors import SpecError
from tfcluster.spec import HostChoice, PlanOptions
from tfcluster.spec.load import LoadedSpec, load
from tfcluster.spec.model import ClusterSpec

from .writing import LEAST

FILE = """\
# all of the lab
anna@gpu1 slots=2

gpu2      # the old one
[2001:db8::5]:2
"""
PLACED: dict[str, Any] = {
    "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222", "10.0.0.2:2223", "[::5]:2222"]},
    "job": {"script": "train.py"},
}


def loaded(value: Any, folder: Path, choice: HostChoice, *sets: str) -> LoadedSpec:
    path = folder / "a.json"
    path.write_text(json.dumps(value))
    return load(path, PlanOptions(sets, hosts=choice))


def addresses(spec: ClusterSpec, job: Any = "worker") -> list[str]:
    tasks = spec.cluster.get(job, ())
    assert not isinstance(tasks, int)
    return [task.address for task in tasks]


def refused(value: Any, folder: Path, choice: HostChoice) -> list[tuple[str, str, str]]:
    with pytest.raises(SpecError) as caught:
        loaded(value, folder, choice)
    return [
        (problem.place.removeprefix(f"{folder}/"), problem.message, problem.fix)
        for problem in caught.value.problems
    ]


def test_a_host_file_becomes_workers_whose_ports_are_chosen_on_the_host(tmp_path: Path) -> None:
    path = tmp_path / "lab"
    path.write_text(FILE)
    for choice in (HostChoice(hosts=str(path)), HostChoice(hostfile=str(path))):
        spec = loaded(LEAST, tmp_path, choice).spec
        gpu1, last = ["gpu1:0"] * 2, ["[2001:db8::5]:0"] * 2
        assert addresses(spec) == [*gpu1, "gpu2:0", *last]
        logins = {host: settings.ssh for host, settings in spec.runtime.hosts.items()}
        assert logins == {"gpu1": "anna@gpu1"}


def test_a_host_list_becomes_workers_like_a_host_file(tmp_path: Path) -> None:
    spec = loaded(LEAST, tmp_path, HostChoice("gpu1,anna@gpu2:2, b@[2001:db8::5]")).spec
    assert addresses(spec) == ["gpu1:0", "gpu2:0", "gpu2:0", "[2001:db8::5]:0"]
    logins = {host: settings.ssh for host, settings in spec.runtime.hosts.items()}
    assert logins == {"gpu2": "anna@gpu2", "[2001:db8::5]": "b@2001:db8::5"}
    kept = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert loaded(kept, tmp_path, HostChoice()).spec == spec, "without the options"
    spec = loaded({"job": LEAST["job"]}, tmp_path, HostChoice("gpu1,gpu2")).spec
    assert addresses(spec) == ["gpu1:0", "gpu2:0"], "the spec needs no cluster"


def test_other_jobs_keep_their_number_of_tasks(tmp_path: Path) -> None:
    cluster = {"chief": 1, "worker": 9, "ps": ["10.0.0.1:1"], "evaluator": 1}
    value = {**LEAST, "cluster": cluster, "checkpoints": {"dir": "/mnt"}}
    spec = loaded(value, tmp_path, HostChoice("gpu1:3,gpu2:2")).spec
    assert addresses(spec, "chief") == ["gpu1:0"]
    assert addresses(spec) == ["gpu1:0", "gpu1:0"]
    assert addresses(spec, "ps") == addresses(spec, "evaluator") == ["gpu2:0"]
    (problem,) = refused(value, tmp_path, HostChoice("gpu1:3"))
    assert problem[:2] == ("--hosts", "3 slots for 4 tasks: 1 chief, 1 worker, 1 ps, 1 evaluator")


def test_settings_of_used_hosts_are_kept(tmp_path: Path) -> None:
    hosts = {"10.0.0.1": {"python": "/a"}, "gpu1": {"python": "/b"}, "*": {"python": "/c"}}
    value = {**PLACED, "runtime": {"hosts": hosts}}
    spec = loaded(value, tmp_path, HostChoice("anna@gpu1")).spec
    assert set(spec.runtime.hosts) == {"gpu1", "*"}
    assert (spec.runtime.hosts["gpu1"].python, spec.runtime.hosts["gpu1"].ssh) == (
        "/b",
        "anna@gpu1",
    )
    (problem,) = refused(value, tmp_path, HostChoice("gpu3"))
    assert problem[1] == "no address of the cluster has the host 'gpu1'"


def test_a_run_uses_one_slot_per_worker() -> None:
    value = {**LEAST, "name": "train"}
    for workers, expected in ((None, 4), (3, 3)):
        at = HostChoice("gpu1:2,gpu2:2", workers=workers)
        spec = load(value, PlanOptions(hosts=at)).spec
        assert addresses(spec) == ["gpu1:0", "gpu1:0", "gpu2:0", "gpu2:0"][:expected]
    at = HostChoice("gpu1:2,gpu2:2", workers=5)
    with pytest.raises(SpecError, match="4 slots for 5 tasks: 5 worker"):
        load(value, PlanOptions(hosts=at))


# (a line of a file, a part of the message, a part of the fix)
BAD_LINES = {
    "no slots": ("gpu1 slots=0", "'0' is not a number of slots", "1 to 10000"),
    "slots that are not a number": ("gpu1 slots=two", "'two' is not a number", "1 to 10000"),
    "slots apart": ("gpu1 slots = 2", "'slots' is not a known setting", "host slots=2"),
    "slots twice": ("gpu1:2 slots=2", "written twice", "keep one"),
    "another key": ("gpu1 max_slots=2", "'max_slots=2' is not a known setting", "host slots=2"),
    "an address": (
        "gpu1:22222222",
        "'22222222' is not a number of slots",
        "chooses the ports",
    ),
    "a scheme": ("ssh://gpu1", "has a scheme", '"user@host"'),
    "no user": ("@gpu1", "no user before the @", '"user@host"'),
    "an option of ssh": ("-oProxyCommand=x@gpu1", "no user before the @", '"user@host"'),
    "a range": ("gpu[1-4]", "not a host name", 'write "host"'),
    "bare IPv6": ("2001:db8::5", "not a host name", '"[2001:db8::5]"'),
    "any address": ("0.0.0.0", "not a host name", "by which the other tasks reach"),
    "too large a number": ("10.0.0.300", "not a host name", "four numbers"),
    "a list": ("gpu1,gpu2", "not a host name", 'write "host"'),
    "a host again": ("GPU0", "GPU0 is already listed: ", "slots=2"),
}


@pytest.mark.parametrize(("line", "message", "fix"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_reported_with_its_place(
    tmp_path: Path, line: str, message: str, fix: str
) -> None:
    (tmp_path / "lab").write_text(f"gpu0\n# two\n{line}\n@\n")
    first, second = refused(LEAST, tmp_path, HostChoice(str(tmp_path / "lab")))
    assert (first[0], second[0]) == ("lab:3", "lab:4")
    assert message in first[1]
    assert fix in first[2]


def test_an_invalid_host_file_is_refused(tmp_path: Path) -> None:
    for name, content, message in (
        ("empty", b"# nothing\n\n", "no host is listed"),
        ("binary", b"gpu1\n\xff\n", "byte 0xff is not UTF-8"),
        ("large", b"#" * 5_000_000, "larger than 4 MiB"),
    ):
        (tmp_path / name).write_bytes(content)
        (problem,) = refused(LEAST, tmp_path, HostChoice(str(tmp_path / name)))
        assert problem[1] == message
    for name, message in (
        ("hosts.txt", "no such file"),
        (f"{tmp_path}/none", "no such file"),
        (str(tmp_path), "this is a folder, not a host file"),
    ):
        (problem,) = refused(LEAST, tmp_path, HostChoice(name))
        assert problem[1] == message
    (problem,) = refused(LEAST, tmp_path, HostChoice("gpu1", "hosts"))
    assert problem == ("--hostfile", "cannot be combined with --hosts", "keep one of them")


def test_mistakes_that_the_model_finds_are_reported_at_the_host(tmp_path: Path) -> None:
    (problem,) = refused(LEAST, tmp_path, HostChoice("gpu1,localhost"))
    assert problem[0] == "--hosts localhost"
    (tmp_path / "lab").write_text("gpu1\n127.0.0.1 slots=1\n")
    (problem,) = refused(LEAST, tmp_path, HostChoice(str(tmp_path / "lab")))
    assert problem[0] == "lab:2"


def test_settings_of_a_task_are_not_dropped_silently(tmp_path: Path) -> None:
    value = {**LEAST, "cluster": {"worker": [{"address": "gpu1:0", "gpus": 1}]}}
    (problem,) = refused(value, tmp_path, HostChoice("gpu2"))
    assert "cluster.worker.0 has its own gpus or env" in problem[1]


# (--include, --exclude, the remaining workers)
SELECTIONS = {
    "a host": ([], ["10.0.0.1"], [1, 2, 3]),
    "worker:0, replaced by another": ([], ["10.0.0.1", "[::5]"], [1, 2]),
    "hosts with commas": ([], ["10.0.0.1,[::5]"], [1, 2]),
    "a task by name": ([], ["10.0.0.2:worker:2"], [0, 1, 3]),
    "a task as files are named": ([], ["10.0.0.2:worker-1"], [0, 2, 3]),
    "a task by its place on the host": ([], ["10.0.0.2:0"], [0, 2, 3]),
    "a task by its port": ([], ["10.0.0.2:2223"], [0, 1, 3]),
    "DeepSpeed's form": (["10.0.0.1@10.0.0.2:0,1"], [], [0, 1, 2]),
    "another spelling": ([], ["[0::5]"], [0, 1, 2]),
    "both": (["10.0.0.2", "10.0.0.1"], ["10.0.0.2:1"], [0, 1]),
}


@pytest.mark.parametrize(("include", "exclude", "remaining"), SELECTIONS.values(), ids=SELECTIONS)
def test_a_part_of_the_cluster_is_selected(
    tmp_path: Path, include: list[str], exclude: list[str], remaining: list[int]
) -> None:
    choice = HostChoice(include=tuple(include), exclude=tuple(exclude))
    spec = loaded(PLACED, tmp_path, choice).spec
    assert addresses(spec) == [PLACED["cluster"]["worker"][index] for index in remaining]


def test_settings_move_with_their_task(tmp_path: Path) -> None:
    value = {**PLACED, "runtime": {"hosts": {"10.0.0.1": {"python": "/a"}}}}
    sets = ("cluster.worker.0.env.A=1", "cluster.worker.2.env.B=2")
    found = loaded(value, tmp_path, HostChoice(exclude=("10.0.0.1",)), *sets)
    assert found.set_paths == {"cluster.worker.1.env.B"}
    assert not found.spec.runtime.hosts
    tasks = found.spec.cluster["worker"]
    assert not isinstance(tasks, int)
    assert [task.env for task in tasks] == [{}, {"B": "2"}, {}]


def test_programs_of_tasks_move_with_their_tasks(tmp_path: Path) -> None:
    cluster = {
        "worker": ["10.0.0.1:0", "10.0.0.2:0", "10.0.0.3:0"],
        "evaluator": ["10.0.0.1:0"],
    }
    args = {name: {"args": [name]} for name in ("worker", "worker:0", "worker:2", "evaluator")}
    value = {"cluster": cluster, "job": {"script": "t.py", "per_task": args}}
    spec = loaded(value, tmp_path, HostChoice(exclude=("10.0.0.1",))).spec
    assert {key: step.args for key, step in spec.job.per_task.items()} == {
        "worker": ("worker",),
        "worker:1": ("worker:2",),
    }


@pytest.mark.parametrize("choice", [HostChoice(), HostChoice(exclude=("10.0.0.2",))])
def test_x_keys_are_neither_tasks_nor_hosts(tmp_path: Path, choice: HostChoice) -> None:
    value = {
        "cluster": {"worker": ["10.0.0.1:0", "10.0.0.2:0"]},
        "job": {"script": "t.py", "per_task": {"x-why": "b", "x-a:b": 1, "worker": {"args": []}}},
        "runtime": {"hosts": {"x-owner": "Anna", "10.0.0.1": {"ssh": "anna@gpu1"}}},
    }
    spec = loaded(value, tmp_path, choice).spec
    assert set(spec.job.per_task) == {"worker"}
    assert set(spec.runtime.hosts) == {"10.0.0.1"}


def test_an_unknown_item_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    exclude = ("10.0.0.9", "10.0.0.1:worker:1", "10.0.0.1:7")
    first, second, third = refused(PLACED, tmp_path, HostChoice(exclude=exclude))
    assert first == (
        "--exclude 10.0.0.9",
        "no task is on the host '10.0.0.9'",
        "use one of 10.0.0.1, 10.0.0.2, [::5]",
    )
    assert second[1:] == ("10.0.0.1 has no task 'worker:1'", "its tasks are worker:0")
    assert third[1] == "10.0.0.1 has no task '7'"
    (problem,) = refused(LEAST, tmp_path, HostChoice(exclude=("gpu1",)))
    assert "the cluster lists no addresses" in problem[2]


def test_neither_chief_nor_the_last_worker_or_ps_can_be_left_out(tmp_path: Path) -> None:
    cluster = {job: [f"10.0.0.{n}:1"] for n, job in enumerate(("chief", "worker", "ps"))}
    value = {**LEAST, "cluster": cluster, "checkpoints": {"dir": "/mnt"}}
    for number, job in enumerate(cluster):
        (problem,) = refused(value, tmp_path, HostChoice(exclude=(f"10.0.0.{number}",)))
        place = f"--exclude 10.0.0.{number}"
        assert problem[:2] == (place, f"no {job} would remain; the spec has 1, on 10.0.0.{number}")
    cluster = {**PLACED["cluster"], "evaluator": ["10.0.0.7:1"]}
    spec = loaded({**PLACED, "cluster": cluster}, tmp_path, HostChoice(exclude=("10.0.0.7",))).spec
    assert set(spec.cluster) == {"worker"}, "an evaluator can"
    value = {**PLACED, "supervision": {"min_workers": 4}}
    (problem,) = refused(value, tmp_path, HostChoice(exclude=("10.0.0.1",)))
    assert problem[0].startswith("a.json:1:")
    assert "min_workers is 4, but the cluster has 3" in problem[1]


def test_an_invalid_spec_is_refused_with_host_options_too(tmp_path: Path) -> None:
    broken: list[Any] = [
        [],
        {},
        {"cluster": 3},
        {"cluster": {"worker": "x", "job": 1}, "runtime": []},
    ]
    for value in broken:
        for choice in (HostChoice("gpu1"), HostChoice(include=("gpu1",))):
            assert refused(value, tmp_path, choice)
