"""Valid specs load with the values that the reference documents."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tfcluster.plans.keras_settings import changed_settings
from tfcluster.spec import PlanOptions
from tfcluster.spec.cluster import TaskEntry
from tfcluster.spec.load import load
from tfcluster.spec.model import ClusterSpec

from .writing import HOSTS, LEAST, spec_of


def test_a_number_of_workers_and_a_script_are_enough(tmp_path: Path) -> None:
    spec = spec_of(LEAST, tmp_path)
    assert spec.cluster == {"worker": 2}
    assert spec.job.script == "train.py"
    assert spec.task_count == 2
    assert (spec.version, spec.job.workdir, spec.supervision.max_restarts) == (1, ".", 3)


def test_the_three_ways_to_write_tasks(tmp_path: Path) -> None:
    cluster: dict[str, Any] = {
        "worker": ["10.0.0.1:2222", {"address": "gpu2:0", "gpus": [0, 1], "env": {"A": None}}],
        "evaluator": ["10.0.0.1:0"],
        "x-why": "as measured",
        "ps": None,
    }
    spec = spec_of({**LEAST, "cluster": cluster}, tmp_path)
    assert spec.cluster["worker"] == (
        TaskEntry(address="10.0.0.1:2222"),
        TaskEntry(address="gpu2:0", gpus=(0, 1), env={"A": None}),
    )
    assert spec.hosts == ("10.0.0.1", "gpu2")
    assert set(spec.cluster) == {"worker", "evaluator"}


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("localhost:0", "localhost", 0),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("gpu-1.example.org:2222", "gpu-1.example.org", 2222),
        ("my_container:1", "my_container", 1),
        ("[::1]:2222", "[::1]", 2222),
        ("[2001:db8::5]:1", "[2001:db8::5]", 1),
    ],
)
def test_an_address_is_host_and_port_with_ipv6_in_brackets(
    address: str, host: str, port: int
) -> None:
    task = TaskEntry(address=address)
    assert (task.host, task.port, task.address) == (host, port, address)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(90, 90), (0.5, 0.5), ("90s", 90), ("5m", 300), ("12h", 43200), ("2d", 172800),
     ("500ms", 0.5), ("1.5 h", 5400)],
)  # fmt: skip
def test_durations_take_units(written: object, seconds: float, tmp_path: Path) -> None:
    spec = spec_of({**LEAST, "supervision": {"grace_s": written}}, tmp_path)
    assert spec.supervision.grace_s == seconds


def test_keys_with_x_are_ignored_everywhere(tmp_path: Path) -> None:
    value = {"x-note": 1, **LEAST, "job": {"script": "t.py", "x-owner": {"a": [1]}}}
    assert spec_of(value, tmp_path) == spec_of({**LEAST, "job": {"script": "t.py"}}, tmp_path)


def test_a_stored_spec_loads_as_the_same_spec(tmp_path: Path) -> None:
    value = {
        **HOSTS,
        "$schema": "s.json",
        "supervision": {"run_deadline_s": "12h", "grow": "off", "grow_every_s": 0},
        "runtime": {"interface": "{node}-ib", "ports": "60001-63000"},
        "resources": {"gpus": "all"},
        "job": {"command": ["a"], "prepare": {"module": "a.b"}, "env": {"A": None}},
    }
    spec = spec_of(value, tmp_path)
    stored = json.loads(spec.model_dump_json(by_alias=True))
    assert spec_of(stored, tmp_path) == spec
    assert (spec.runtime.port_range, spec.supervision.grow_every_s) == ((60001, 63000), 0.0)


def test_comments_last_commas_and_a_byte_order_mark_are_read_in_jsonc(tmp_path: Path) -> None:
    path = tmp_path / "lab.jsonc"
    path.write_text(
        '\ufeff// two\n{"cluster": {"worker": 2,}, /* the // it */ "job": {"script": "a//b.py"},}\n'
    )
    assert load(path).spec.job.script == "a//b.py"


@pytest.mark.parametrize(
    ("file", "name"),
    [("lab.json", "lab"), ("my spec (2).json", "my-spec-2"), ("...json", "tfcluster"),
     ("été.json", "t"), ("x" * 80 + ".json", "x" * 63)],
)  # fmt: skip
def test_a_spec_without_a_name_is_named_after_its_file(
    file: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(json.dumps(LEAST))
    assert load(tmp_path / file).spec.name == name


def test_the_spec_in_the_working_directory_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tfcluster.jsonc").write_text(json.dumps(LEAST) + "// mine")
    loaded = load(None, PlanOptions(("supervision.grace_s=5",)))
    assert loaded.path == tmp_path / "tfcluster.jsonc"
    assert loaded.folder == tmp_path
    assert loaded.set_paths == {"supervision.grace_s"}


def test_a_spec_may_come_through_a_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, json.dumps(LEAST).encode())
    os.close(write)
    try:
        assert load(f"/dev/fd/{read}").spec.cluster == {"worker": 2}
    finally:
        os.close(read)


def test_a_spec_made_from_options_needs_no_file() -> None:
    value = {**LEAST, "name": "train"}
    spec = load(value, PlanOptions(("keras.version=2",)), where="tfcluster run").spec
    assert isinstance(spec, ClusterSpec)
    assert (spec.name, spec.keras.version) == ("train", "2")


def test_parameter_servers_need_no_chief_with_the_default_strategy(tmp_path: Path) -> None:
    """TensorFlow 1 makes worker:0 the chief of a MonitoredTrainingSession."""
    cluster = {"worker": 2, "ps": 1}
    spec = spec_of({**LEAST, "cluster": cluster, "strategy": {"name": "default"}}, tmp_path)
    assert spec.task_count == 3
    assert changed_settings(spec) == {}, "a script has nothing to read there"


@pytest.mark.parametrize("network", ["ib0", "eth0:1", "10.20.0.0/16", "fd00::/8", "{node}-ib"])
def test_a_network_and_a_range_of_ports_can_be_chosen(network: str, tmp_path: Path) -> None:
    runtime = spec_of(
        {**LEAST, "runtime": {"interface": network, "ports": "60001-63000"}}, tmp_path
    ).runtime
    assert (runtime.interface, runtime.port_range) == (network, (60001, 63000))
