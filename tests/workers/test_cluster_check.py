"""A script that joins a cluster other than its run's is refused at once, with the user line."""

from __future__ import annotations

import json
import os
import re
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.integration.live import free_ports

from tfcluster_workers import reporting
from tfcluster_workers.errors import ClusterChangedError, NotServingError
from tfcluster_workers.hooks import cluster_check, keras_hooks, tf_config_changes, training_facts

from .conftest import PYTHONS, Boot

TWO = {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}
GIVEN = {"cluster": TWO, "task": {"type": "worker", "index": 1}}
TUTORIAL = {"worker": ["localhost:12345", "localhost:23456"]}


@dataclass
class Spec:
    """The part of a cluster spec that the check uses."""

    cluster: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return self.cluster


@dataclass
class Resolver:
    """A stand-in for SimpleClusterResolver."""

    cluster: dict[str, Any]
    task_type: str = "worker"
    task_id: int = 1

    def cluster_spec(self) -> Spec:
        return Spec(self.cluster)


@dataclass
class Task:
    """This process as a task, with its TF_CONFIG, its script's changes and its notes."""

    monkeypatch: pytest.MonkeyPatch
    notes: list[str] = field(default_factory=list)

    def is_given(self, config: dict[str, Any]) -> None:
        for name, value in (
            ("assigned", json.dumps(config)),
            ("_pid", os.getpid()),
            ("_last", None),
        ):
            self.monkeypatch.setattr(tf_config_changes, name, value)
        self.monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    def sets(self, text: str) -> None:
        self.monkeypatch.setenv("TF_CONFIG", text)
        self.monkeypatch.setattr(tf_config_changes, "_last", ("/job/main.py", 12, "sets"))

    def removes(self) -> None:
        self.monkeypatch.delenv("TF_CONFIG")
        self.monkeypatch.setattr(tf_config_changes, "_last", ("/job/main.py", 3, "removes"))


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    made = Task(monkeypatch)
    made.is_given(GIVEN)
    monkeypatch.setattr(reporting, "note", made.notes.append)
    monkeypatch.setattr(cluster_check, "_has_joined", False)
    monkeypatch.setattr(cluster_check, "_servers", {})
    return made


def config(cluster: dict[str, Any], index: int = 1, job: str = "worker") -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def test_a_script_that_leaves_tf_config_alone_joins(task: Task) -> None:
    cluster_check.check_strategy(None)
    assert task.notes == []


def test_another_cluster_is_refused_with_the_line_and_both_clusters(task: Task) -> None:
    task.sets(config(TUTORIAL, index=0))
    with pytest.raises(ClusterChangedError) as refused:
        cluster_check.check_strategy(None)
    assert str(refused.value) == (
        "main.py:12 sets TF_CONFIG: this task would be worker:0 of"
        ' {"worker": ["localhost:12345", "localhost:23456"]}\n'
        'tfcluster started it as worker:1 of {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}'
    )
    assert refused.value.place == ("/job/main.py", 12)


def test_another_task_of_the_same_cluster_is_refused(task: Task) -> None:
    task.sets(config(TWO, index=0))
    with pytest.raises(ClusterChangedError, match=r"would be worker:0 of .*\n.* as worker:1 of"):
        cluster_check.check_strategy(None)


@pytest.mark.parametrize("alone", ["", "{}", config({}), config({"worker": ["localhost:9"]}, 0)])
def test_a_task_that_would_train_alone_is_refused(task: Task, alone: str) -> None:
    """TensorFlow silently trains on one worker if TF_CONFIG has no cluster."""
    if alone:
        task.sets(alone)
    else:
        task.removes()
    change = "main.py:12 sets" if alone else "main.py:3 removes"
    words = f"^{change} TF_CONFIG: each of the 2 workers would train alone$"
    with pytest.raises(ClusterChangedError, match=words):
        cluster_check.check_strategy(None)


def test_invalid_json_is_refused(task: Task) -> None:
    task.sets("{'cluster': 1}")
    with pytest.raises(ClusterChangedError, match=r"main\.py:12 sets TF_CONFIG: it is not valid"):
        cluster_check.check_strategy(None)


def test_a_custom_resolver_is_refused_when_the_strategy_is_made(task: Task) -> None:
    with pytest.raises(ClusterChangedError, match="cluster resolver is not") as refused:
        cluster_check.check_strategy(Resolver(TUTORIAL, task_id=0))
    assert refused.value.place is None


@pytest.mark.parametrize(
    "same",
    [
        TWO,
        {"worker": ["localhost:5001", "localhost:5002"]},
        {"worker": {0: "127.0.0.1:5001", 1: "127.0.0.1:5002"}},
    ],
)
def test_the_same_cluster_written_differently_is_accepted(task: Task, same: dict[str, Any]) -> None:
    cluster_check.check_strategy(Resolver(same))
    assert task.notes == []


def test_a_task_that_renames_itself_gets_a_note(task: Task) -> None:
    task.sets(config({"chief": [TWO["worker"][1]], "worker": [TWO["worker"][0]]}, 0, "chief"))
    cluster_check.check_strategy(None)
    (note,) = task.notes
    assert note.startswith("main.py:12 sets TF_CONFIG: it joins as chief:0 of")


def test_a_single_task_may_have_peers_started_elsewhere(task: Task) -> None:
    task.is_given({"cluster": {"worker": ["127.0.0.1:5001"]}, "task": {"type": "worker"}})
    task.sets(config(TUTORIAL))
    cluster_check.check_strategy(None)
    (note,) = task.notes
    assert note.startswith("main.py:12 sets TF_CONFIG: this task would be worker:1 of")


def test_only_the_first_strategy_of_a_task_joins(task: Task) -> None:
    cluster_check.check_strategy(None)
    task.removes()
    cluster_check.check_strategy(None)


@pytest.mark.parametrize("who", ["an evaluator", "a forked child", "a task without a cluster"])
def test_other_processes_are_not_checked(
    task: Task, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.removes()
    if who == "an evaluator":
        monkeypatch.setattr(tf_config_changes, "assigned", config(TWO, 0, "evaluator"))
    elif who == "a forked child":
        monkeypatch.setattr(tf_config_changes, "_pid", os.getpid() + 1)
    else:
        monkeypatch.setattr(tf_config_changes, "assigned", "")
    cluster_check.check_strategy(None)


def model(*, in_scope: bool) -> Any:
    """Return a stand-in for a Keras model made inside or outside the strategy's scope."""
    extended = types.SimpleNamespace(_in_multi_worker_mode=lambda: in_scope)
    return types.SimpleNamespace(distribute_strategy=types.SimpleNamespace(extended=extended))


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("in_scope", [False, True])
def test_a_model_is_outside_the_scope_of_a_strategy_that_has_joined(
    task: Task, joins: bool, in_scope: bool
) -> None:
    task.is_given({"cluster": TWO, "task": {"type": "worker", "index": 0}})
    if joins:
        cluster_check.check_strategy(None)
    assert cluster_check.has_joined() is joins
    assert cluster_check.is_outside_scope(model(in_scope=in_scope)) is (joins and not in_scope)


PS = {"worker": ["127.0.0.1:5001"], "ps": ["127.0.0.1:5002"]}
OTHERS = {"worker": ["localhost:2223"], "ps": ["localhost:2222"]}


def test_a_server_of_another_cluster_is_refused_when_it_is_used(task: Task) -> None:
    task.is_given({"cluster": PS, "task": {"type": "ps", "index": 0}})
    cluster_check.note_server("grpc://localhost:5002", PS, "ps", 0)
    cluster_check.check_server("grpc://localhost:5002")
    cluster_check.note_server("grpc://localhost:2222", OTHERS, "ps", 0)
    with pytest.raises(ClusterChangedError, match=r"makes a server: this task would be ps:0 of"):
        cluster_check.check_server("grpc://localhost:2222")
    with pytest.raises(ClusterChangedError, match="cluster resolver"):
        cluster_check.check_parameter_servers(Resolver(OTHERS, "chief", 0))


def test_a_server_made_from_a_changed_tf_config_is_refused_with_the_line_of_the_change(
    task: Task,
) -> None:
    task.sets(config(OTHERS, 0, "ps"))
    cluster_check.note_server("grpc://localhost:2222", OTHERS, "ps", 0)
    with pytest.raises(ClusterChangedError, match=r"^main.py:12 sets .* ps:0 of") as error:
        cluster_check.check_server("grpc://localhost:2222")
    assert error.value.place == ("/job/main.py", 12)


HOSTS = {"worker": ["gpu1:2222", "gpu2:2222"], "ps": ["gpu1:2223"]}
IPS = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"], "ps": ["10.0.0.1:2223"]}
LOCAL = {"worker": ["gpu1:2222", "[::]:2222"], "ps": ["localhost:2223"]}
OTHER_PORT = {"worker": ["10.0.0.1:2222", "10.0.0.2:2224"], "ps": ["10.0.0.1:2223"]}
FEWER = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}


def joins(cluster: dict[str, Any], index: int, way: str) -> None:
    if way == "server":
        cluster_check.note_server("grpc://localhost:2222", cluster, "worker", index)
        cluster_check.check_server("grpc://localhost:2222")
    elif way == "strategy":
        cluster_check.check_strategy(Resolver(cluster, task_id=index))
    else:
        cluster_check.note_server("grpc://localhost:2222", cluster, "worker", index)
        cluster_check.check_parameter_servers(Resolver(cluster, task_id=index))


@pytest.mark.parametrize("way", ["server", "strategy", "parameter servers"])
@pytest.mark.parametrize("other", [IPS, LOCAL], ids=["by IP", "by local names"])
def test_other_host_names_are_noted(task: Task, way: str, other: dict[str, Any]) -> None:
    task.is_given({"cluster": HOSTS, "task": {"type": "worker", "index": 1}})
    joins(other, 1, way)
    (note,) = task.notes
    assert re.search(r": it joins as worker:1 of .*; tfcluster started it as worker:1 of", note)


@pytest.mark.parametrize("way", ["server", "strategy", "parameter servers"])
@pytest.mark.parametrize(
    ("other", "index"), [(IPS, 0), (OTHER_PORT, 1)], ids=["another task", "another port"]
)
def test_other_host_names_are_refused_if_more_differs(
    task: Task, way: str, other: dict[str, Any], index: int
) -> None:
    task.is_given({"cluster": HOSTS, "task": {"type": "worker", "index": 1}})
    with pytest.raises(ClusterChangedError, match=rf"would be worker:{index} of"):
        joins(other, index, way)


def test_a_server_of_fewer_tasks_is_refused(task: Task) -> None:
    task.is_given({"cluster": HOSTS, "task": {"type": "worker", "index": 1}})
    with pytest.raises(ClusterChangedError, match="would be worker:1 of"):
        joins(FEWER, 1, "server")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "localhost", "127.0.0.1", "gpu2", "gpu2.lan"])
def test_all_names_of_this_machine_are_equal(
    task: Task, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tfcluster_workers.hooks.cluster_check.socket.gethostname", lambda: "gpu2.lan"
    )
    task.is_given({"cluster": HOSTS, "task": {"type": "worker", "index": 1}})
    joins({**HOSTS, "worker": ["gpu1:2222", f"{host}:2222"]}, 1, "server")
    assert task.notes == []


def test_a_cluster_with_all_servers_in_one_process_is_accepted(task: Task) -> None:
    """TensorFlow's parameter-server tutorial makes such a cluster in its notebook."""
    cluster_check.note_server("grpc://localhost:2222", OTHERS, "ps", 0)
    cluster_check.note_server("grpc://localhost:2223", OTHERS, "worker", 0)
    cluster_check.check_server("grpc://localhost:2223")
    cluster_check.check_parameter_servers(Resolver(OTHERS, "chief", 0))
    (note,) = task.notes
    assert note.startswith("the script makes all servers itself: each of the 2 tasks trains alone")
    alone = {"local": ["localhost:0"]}  # Server.create_local_server()
    cluster_check.note_server("grpc://localhost:41017", alone, "local", 0)
    cluster_check.check_server("grpc://localhost:41017")


@pytest.mark.parametrize(
    ("job", "resolver", "is_refused"),
    [
        ("ps", None, True),
        ("worker", None, True),
        ("worker", Resolver(PS, "", 0), True),
        ("worker", Resolver(PS, "chief", 0), True),
        ("chief", None, False),
        ("evaluator", None, False),
    ],
    ids=["a ps", "a worker", "without its task", "as chief", "the chief", "an evaluator"],
)
def test_a_task_that_would_wait_for_its_own_server_is_refused(
    task: Task, job: str, resolver: Resolver | None, is_refused: bool
) -> None:
    cluster = {**PS, "chief": ["127.0.0.1:5000"], "evaluator": ["127.0.0.1:5003"]}
    task.is_given({"cluster": cluster, "task": {"type": job, "index": 0}})
    if not is_refused:
        cluster_check.check_parameter_servers(resolver)
        return
    with pytest.raises(NotServingError, match=f"^{job}:0 makes a ParameterServerStrategy, which"):
        cluster_check.check_parameter_servers(resolver)
    cluster_check.note_server(f"grpc://{cluster[job][0]}", cluster, job, 0)
    cluster_check.check_parameter_servers(resolver)  # it serves itself


def test_a_worker_that_leads_the_others_without_a_chief_is_accepted(task: Task) -> None:
    given = {"worker": ["127.0.0.1:5000", *PS["worker"]], "ps": PS["ps"]}
    task.is_given({"cluster": given, "task": {"type": "worker", "index": 0}})
    leads = Resolver({**PS, "chief": ["127.0.0.1:5000"]}, "chief", 0)
    cluster_check.check_parameter_servers(leads)
    assert task.notes == []


@pytest.mark.parametrize(
    ("cluster", "index", "can_be_specified"),
    [
        (TUTORIAL, 1, True),
        ({"worker": ["gpu1:2222", "gpu2:2222"]}, 1, True),
        (TUTORIAL, 0, False),
        ({"worker": ["gpu1", "gpu2"]}, 1, False),
        ({"master": ["gpu1:2222"], **TUTORIAL}, 1, False),
        ({"worker": [f"gpu{number}:2222" for number in range(17)]}, 1, False),
    ],
    ids=["here", "on hosts", "another task", "no ports", "another job", "too many"],
)
def test_fixed_addresses_are_shown_as_a_cluster_for_the_spec(
    task: Task, cluster: dict[str, Any], index: int, can_be_specified: bool
) -> None:
    task.sets(config(cluster, index))
    with pytest.raises(ClusterChangedError) as refused:
        cluster_check.check_strategy(None)
    option = f"\nto keep the script's own addresses: --set 'cluster={json.dumps(cluster)}'"
    assert str(refused.value).endswith(option) is can_be_specified


def test_an_error_in_the_check_does_not_break_the_script(task: Task) -> None:
    class BrokenResolver(Resolver):
        def cluster_spec(self) -> Spec:
            raise ValueError("no metadata server")

    cluster_check.check_strategy(BrokenResolver({}))


CHANGES = """
import os, unittest.mock
from tfcluster_workers.hooks import tf_config_changes
def tell():
    file, line, deed = tf_config_changes.last_change()
    print(os.path.basename(file), line, deed)
os.environ["OTHER"] = "x"
print(tf_config_changes.last_change())
os.environ["TF_CONFIG"] = "8"; tell()
os.environ.update(TF_CONFIG="9"); tell()
os.environ |= {"TF_CONFIG": "10"}; tell()
os.environ.setdefault("TF_CONFIG", "x")
del os.environ["TF_CONFIG"]; tell()
os.environ.setdefault("TF_CONFIG", "13"); tell()
os.environ.pop("TF_CONFIG", None); tell()
os.environ.pop("TF_CONFIG", None)
with unittest.mock.patch.dict(os.environ, TF_CONFIG="16"): tell()
import setup_cluster
setup_cluster.run(); tell()
print(os.environ["TF_CONFIG"], "TF_CONFIG" in os.environ)
"""


def test_every_way_to_change_tf_config_is_recorded_with_the_user_line(
    tmp_path: Path, python: str, boot: Boot
) -> None:
    (tmp_path / "setup_cluster.py").write_text(
        "import os\ndef run():\n    os.environ['TF_CONFIG'] = 'last'\n"
    )
    (tmp_path / "main.py").write_text(CHANGES)
    ended = boot("script", str(tmp_path / "main.py"), python=python, env={"TF_CONFIG": "{}"})
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "None",
        *(f"main.py {line} sets" for line in (9, 10, 11)),
        "main.py 13 removes",
        "main.py 14 sets",
        "main.py 15 removes",
        "main.py 17 sets",
        "setup_cluster.py 3 sets",
        "last True",
    ]


REAL = """
import json, os
given = os.environ.pop("TF_CONFIG")
import tensorflow as tf

def tries(what):
    try:
        what()
    except RuntimeError as error:
        print(type(error).__name__, getattr(error, "place", ""), str(error).split(":")[0])

tries(tf.distribute.MultiWorkerMirroredStrategy)
cluster = {"worker": ["localhost:PORT0", "localhost:PORT1"], "ps": ["localhost:PORT2"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
tries(tf.distribute.experimental.MultiWorkerMirroredStrategy)
SimpleClusterResolver = tf.distribute.cluster_resolver.SimpleClusterResolver
resolver = SimpleClusterResolver(tf.train.ClusterSpec(cluster), task_type="chief", task_id=0)
tries(lambda: tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver))
tries(lambda: tf.distribute.ParameterServerStrategy(resolver))
os.environ["TF_CONFIG"] = given
of_this_run = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tries(lambda: tf.distribute.ParameterServerStrategy(of_this_run))
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
server = tf.distribute.Server(cluster, job_name="worker", task_index=0)
tries(server.join)
tries(lambda: tf.compat.v1.Session(server.target))
local = tf.compat.v1.train.Server.create_local_server()
with tf.Graph().as_default(), tf.compat.v1.Session(local.target) as session:
    print("local", session.run(tf.constant(3)))
print("mirrored", tf.distribute.MirroredStrategy(["CPU:0"]).num_replicas_in_sync)
raise SystemExit(tf.distribute.MultiWorkerMirroredStrategy())
"""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("tensorflow", list(PYTHONS))
def test_strategies_servers_and_sessions_of_tensorflow_are_refused(
    tmp_path: Path, boot: Boot, tensorflow: str
) -> None:
    """All run in one process, because each is refused before it waits for a peer."""
    script = REAL
    for number, port in enumerate(free_ports(3)):
        script = script.replace(f"PORT{number}", str(port))
    main = tmp_path / "main.py"
    main.write_text(script)
    given = {**GIVEN, "cluster": {**TWO, "ps": ["127.0.0.1:5003"]}}
    env = {"TF_CONFIG": json.dumps(given)}
    ended = boot("script", str(main), python=PYTHONS[tensorflow], env=env)

    name, by_hand = "ClusterChangedError", "the strategy's cluster resolver is not made from"
    assert ended.out.splitlines() == [
        f"{name} ('{main}', 3) main.py",
        f"{name} ('{main}', 14) main.py",
        f"{name} None {by_hand} TF_CONFIG",
        f"{name} None {by_hand} TF_CONFIG",
        "NotServingError  worker",
        f"{name} ('{main}', 23) main.py",
        f"{name} ('{main}', 23) main.py",
        "local 3",
        "mirrored 1",
    ], ended.err
    (error,) = ended.of("task_error")
    assert (ended.code, error["file"], error["line"]) == (1, str(main), 23)
    assert error["exception"] == "tfcluster_workers.errors.ClusterChangedError"
    assert ended.of("waiting_for_peers") == []


def test_every_keras_fit_is_checked_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Model:
        def fit(self) -> None:
            done.append("fit")

        def evaluate(self) -> None:
            """Stand for Keras's `evaluate`."""

    training = types.ModuleType("training")
    vars(training)["Model"] = Model
    keras_hooks.watch_fit(training)
    monkeypatch.setattr(training_facts, "note_fit", lambda model: done.append("checked"))
    Model().fit()
    assert done == ["checked", "fit"]
