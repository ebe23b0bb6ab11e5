"""Every known error is recognized from the message that TensorFlow, Keras or Python writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster import kinds
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.keras_settings import KerasPatch
from tfcluster.plans.plan import NodePlan
from tfcluster.supervision import known_errors
from tfcluster.supervision.failure import (
    CIRCUMSTANCES,
    WITHOUT_KERAS_3,
    WITHOUT_NETWORK,
    Failure,
    Kind,
    find,
    kind_of_loss,
)
from tfcluster.supervision.known_errors import KnownError
from tfcluster.supervision.restarting import loss_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/failures.md").read_text()
ROWS = [*known_errors.MESSAGES, *CIRCUMSTANCES.values()]
ROWS += [
    KnownError(*advice, kind=str(kind_of_loss(nature)))
    for backend in kinds.REGISTRY
    for nature, advice in kinds.get(backend).losses.items()
]


def read_messages() -> Iterator[tuple[str, Kind, str, str]]:
    """Yield anchor, kind, exception and message of each line of ``known_errors.txt``."""
    anchor, kind = "", ""
    for line in (Path(__file__).parent / "known_errors.txt").read_text().splitlines():
        if line.startswith("["):
            anchor, kind = line.strip("[]").split(": ")
        elif line and not line.startswith("#"):
            exception, _, message = line.partition(": ")
            exception = exception.replace("errors_impl.", f"{RUNTIME}.")
            yield anchor, Kind(kind), exception, message.replace("\\n", "\n").replace("\\t", "\t")


RUNTIME = "tensorflow.python.framework.errors_impl"
MESSAGES = [*read_messages()]
UNREACHABLE = [
    (error, message) for anchor, _, error, message in MESSAGES if anchor == "download-failed"
]
"""Exceptions for a server that cannot be reached."""


@pytest.mark.parametrize(("anchor", "kind", "exception", "message"), MESSAGES)
def test_a_known_error_is_recognized_from_the_report_and_from_the_log(
    anchor: str, kind: Kind, exception: str, message: str
) -> None:
    error: dict[str, Any] = {"exception": exception, "message": message}
    reported = Failure("worker:0", 1, None, error=error)
    place = '  File "/job/main.py", line 40, in <module>\n    main()\n'
    log = f"epoch 1\nTraceback (most recent call last):\n{place}{exception}: {message}\n"
    logged = Failure("worker:0", 1, None, last_lines=log)
    for failure in (reported, logged):
        assert failure.kind is kind
        assert failure.docs == f"docs/failures.md#{anchor}"
        assert failure.hint


@pytest.mark.parametrize(
    ("cause", "anchor", "hint"),
    [
        ("own-addresses", "tf-config", "write the script's own addresses into `cluster`"),
        ("own-resolver", "tf-config", "create the resolver, the server or the strategy"),
        ("cluster-changed", "tf-config", "keep the TF_CONFIG that tfcluster sets"),
        ("not-serving", "not-serving", "per_task"),
        ("only-a-folder", "shadowed-module", "rename it"),
        ("no-gpu-driver", "no-gpu", "install the driver"),
        ("no-gpu-build", "no-gpu", "instead of tensorflow-cpu"),
        ("no-gpu-libraries", "no-gpu", "install NVIDIA's libraries"),
        ("no-gpu-version", "no-gpu", "restart the machine"),
        ("no-gpu", "no-gpu", "nvidia-smi, dmesg"),
    ],
)
def test_an_error_of_the_hooks_is_known_by_its_cause(cause: str, anchor: str, hint: str) -> None:
    error = {"exception": "x.Error", "message": "whatever it says", "cause": cause}
    failure = Failure("worker:0", 1, None, error=error)
    assert failure.kind is Kind.PERMANENT
    assert failure.docs == f"docs/failures.md#{anchor}"
    assert hint in (failure.hint or "")


@pytest.mark.parametrize(
    ("exit_code", "number", "log", "anchor"),
    [
        (2, None, "python: can't open file '/job/x.py': [Errno 2] No such file", "script-missing"),
        (1, None, '  File "/job/x.py", line 3\n    if\n      ^\nSyntaxError: no', "syntax-error"),
        (1, None, "E chttp2: 'https' scheme not supported in proxy URI 'https://p'", "proxy"),
        (
            None,
            6,
            "F grpc_server_lib.cc:103] Non-OK-status: Stop() status: UNIMPLEMENTED: Clean shutdown"
            " is not currently implemented\nFatal Python error: Aborted",
            "peer-never-came",
        ),
        (
            None,
            6,
            "F client.h:80] Terminating process because the JAX distributed service detected fatal"
            " errors. Barrier result: 'DEADLINE_EXCEEDED: Barrier timed out. Id: Shutdown::71::0."
            "\nFatal Python error: Aborted\nThread 0x7f (most recent call first):\n  File"
            ' "/x/site-packages/jax/_src/api.py", line 2582 in clean_up\n\nExtension modules: n',
            "jax-left-early",
        ),
        (1, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory", "gpu-memory"),
        (None, 6, "terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
    ],
)
def test_a_known_error_without_an_exception_is_recognized_from_the_last_lines(
    exit_code: int | None, number: int | None, log: str, anchor: str
) -> None:
    failure = Failure("worker:0", exit_code, number, last_lines=log)
    assert failure.docs == f"docs/failures.md#{anchor}"


@pytest.mark.parametrize(
    ("backend", "nature", "kind", "anchor"),
    [
        ("docker", LossNature.INFRASTRUCTURE, "node_lost", "container-lost"),
        ("docker", LossNature.OWN_FAILURE, "node_lost", "container-lost"),
        ("docker", LossNature.OUT_OF_MEMORY, "out_of_memory", "out-of-memory"),
        ("docker", LossNature.UNKNOWN, "node_lost", "node-lost"),
        ("kubernetes", LossNature.OUT_OF_MEMORY, "out_of_memory", "pod-out-of-memory"),
        ("kubernetes", LossNature.PREEMPTED, "preempted", "pod-preempted"),
        ("kubernetes", LossNature.PERMANENT, "permanent", "pod-permanent"),
        ("kubernetes", LossNature.SILENT, "node_lost", "pod-lost"),
        ("kubernetes", LossNature.OWN_FAILURE, "node_lost", "pod-lost"),
        ("ssh", LossNature.UNKNOWN, "node_lost", "node-lost"),
    ],
)
def test_the_nature_of_a_loss_decides_the_kind_of_the_failure_and_its_backend_the_hint(
    backend: str, nature: LossNature, kind: str, anchor: str
) -> None:
    plan = replace(plan_of("worker:0"), nodes=(NodePlan("local", backend, None, "/job"),))
    failure = loss_of(plan, "local", "worker:0", NodeLoss("it is gone", nature))
    assert failure.kind == kind
    assert failure.reason == "it is gone"
    assert failure.docs == f"docs/failures.md#{anchor}"


def test_an_unreadable_tf_config_is_recognized_by_its_traceback() -> None:
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/tensorflow/python/distribute/cluster_resolver/'
        'tfconfig_cluster_resolver.py", line 48, in _load_tf_config\n'
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
    )
    error = {"exception": "json.decoder.JSONDecodeError", "message": "Expecting value: line 1"}
    failure = Failure("worker:0", 1, None, error=error | {"traceback": traceback})
    assert failure.docs == "docs/failures.md#tf-config"
    assert failure.kind is Kind.PERMANENT
    other = Failure("worker:0", 1, None, error=error | {"traceback": "json/decoder.py"})
    assert other.kind is Kind.EXCEPTION


def test_a_location_in_the_message_is_not_repeated() -> None:
    message = "main.py:3 removes TF_CONFIG: each of the 2 workers would train alone"
    error = {"exception": "tfcluster_workers.errors.ClusterChangedError", "message": message}
    failure = Failure("worker:0", 1, None, error=error | {"file": "/job/main.py", "line": 3})
    assert failure.reason == f"ClusterChangedError: {message}"


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("AttributeError", "'Namespace' object has no attribute 'lr'"),
        ("AttributeError", "'Config' object has no attribute 'output_shape'"),
        ("AttributeError", "module 'keras.layers' has no attribute 'Dens'"),
        ("TypeError", "train() got an unexpected keyword argument 'workers'"),
        ("TypeError", "Model.fit() got an unexpected keyword argument 'epoch'"),
        ("ValueError", "Unrecognized keyword arguments passed to Dense: {'unit': 3}"),
    ],
)
def test_a_mistake_in_the_script_is_not_blamed_on_keras(exception: str, message: str) -> None:
    assert find(f"{exception}: {message}") is None


@pytest.mark.parametrize("anchor", ["keras-2-script", "keras-3-parameter-server"])
def test_if_the_spec_asks_for_keras_3_the_hint_suggests_keras_2(anchor: str) -> None:
    message = next(message for name, _, _, message in MESSAGES if name == anchor)
    error = {"exception": "ValueError", "message": message}
    assert Failure("worker:0", 1, None, error=error).hint != WITHOUT_KERAS_3
    asked = Failure("worker:0", 1, None, error=error, asks_for_keras_3=True)
    assert asked.hint == WITHOUT_KERAS_3
    assert asked.docs == f"docs/failures.md#{anchor}"


@pytest.mark.parametrize(
    ("facts", "here", "in_a_pod"),
    [
        (
            {"signal": 9, "out_of_memory": "the kernel killed it"},
            "fewer tasks on this machine",
            "runtime.kubernetes.resources.limits",
        ),
        ({"signal": 9}, "dmesg", "kubectl describe pod"),
        (
            {"error": {"exception": "OSError", "message": "[Errno 28] No space left on device"}},
            "tfcluster prune",
            "ephemeral-storage",
        ),
        (
            {"error": {"exception": "MemoryError", "message": ""}},
            "fewer tasks on it",
            "runtime.kubernetes.resources.limits",
        ),
        (
            {"error": {"exception": "gaierror", "message": "Name or service not known"}},
            "name server of this machine",
            "the cluster's DNS",
        ),
    ],
)
def test_the_hint_for_a_task_in_a_pod_is_what_helps_there(
    facts: dict[str, Any], here: str, in_a_pod: str
) -> None:
    end: dict[str, Any] = {"exit_code": None if "signal" in facts else 1, "signal": None, **facts}
    assert here in str(Failure("worker:0", **end).hint)
    assert here in str(Failure("worker:0", **end, backend="local").hint)
    hint = str(Failure("worker:0", **end, backend="kubernetes").hint)
    assert in_a_pod in hint
    assert here not in hint


def test_hints_of_backends_are_about_known_errors() -> None:
    known = {row.anchor for row in ROWS}
    for backend in kinds.REGISTRY:
        assert set(kinds.get(backend).hints) <= known, backend
    ended = Failure("worker:0", None, 9, out_of_memory="the kernel killed it", backend="slurm")
    assert "runtime.slurm.mem" in str(ended.hint)


@pytest.mark.parametrize("error", UNREACHABLE)
def test_in_a_private_network_the_hint_names_prepare(error: list[str]) -> None:
    report = {"exception": error[0], "message": error[1]}
    assert "private" not in str(Failure("worker:0", 1, None, error=report).hint)
    assert Failure("worker:0", 1, None, error=report, is_cut_off=True).hint == WITHOUT_NETWORK


@pytest.mark.parametrize(
    "error",
    [
        "Exception: URL fetch failure on https://example.org/mnist.npz: 404 -- Not Found",
        "urllib.error.HTTPError: HTTP Error 403: Forbidden",
        "urllib.error.URLError: <urlopen error unknown url type: s3>",
        "EOFError: Ran out of input",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/part-00000-of-00001'",
    ],
)
def test_a_wrong_address_is_not_blamed_on_the_network_or_on_other_tasks(error: str) -> None:
    assert find(error) is None


def test_the_answer_that_a_task_cannot_read_is_recognized_without_a_message() -> None:
    """click ends with a line, and getpass with an exception without a message."""
    aborted = Failure("worker:0", 1, None, last_lines="Name: Aborted!\n")
    traceback = '  File "/usr/lib/python3.11/getpass.py", line 148, in _raw_input\nEOFError\n'
    error = {"exception": "EOFError", "message": "", "traceback": traceback}
    for failure in (aborted, Failure("worker:0", 1, None, error=error)):
        assert failure.docs == "docs/failures.md#no-terminal"
        assert failure.kind is Kind.PERMANENT
    other = Failure("worker:0", 1, None, error=error | {"traceback": "multiprocessing"})
    assert other.docs is None


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("on", "`fit` runs in a child of the script that has no hooks"),
        ("off", "TFCLUSTER_KERAS3_SHIM is off. Remove it"),
        ("no hooks", "the task has no hooks. Start it as a `script` or `module`"),
    ],
)
def test_the_hint_says_why_keras_3_was_not_patched(patch: KerasPatch, reason: str) -> None:
    message = next(message for name, _, _, message in MESSAGES if name == "keras-3")
    error = {"exception": "ValueError", "message": message}
    failed = Failure("worker:0", 1, None, error=error, keras_patch=patch)
    assert f"it was not patched here: {reason}" in str(failed.hint)


BENIGN = [
    "stty: 'standard input': Inappropriate ioctl for device",
    "WARNING:urllib3.connectionpool:Retrying (Retry(total=1)) after connection broken by X: Max"
    " retries exceeded with url: /x",
    "Aborted! Going on with the other file",
    "W local_rendezvous.cc:404] Local rendezvous is aborting with status: OUT_OF_RANGE: End of"
    " sequence",
    "E cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)",
    "wandb not available (ImportError: No module named 'wandb'), going on without",
]


@pytest.mark.parametrize("line", BENIGN)
def test_output_of_healthy_tasks_matches_no_known_error(line: str) -> None:
    failure = Failure("worker:0", 3, None, last_lines=f"{line}\n" * 3)
    assert failure.hint is None
    assert failure.kind is Kind.EXIT_CODE


def test_every_known_error_has_a_section_and_every_section_a_known_error() -> None:
    anchors = re.findall(r'^<a id="([\w-]+)"></a>$', PAGE, re.MULTILINE)
    assert len(anchors) == len(set(anchors))
    assert set(anchors) == {row.anchor for row in ROWS}
    assert set(re.findall(r"\(#([\w-]+)\)", PAGE)) == set(anchors)


def test_sections_say_which_failures_are_permanent() -> None:
    section = re.compile(r'^<a id="([\w-]+)"></a>\n### (.*)$', re.MULTILINE)
    message = {anchor for anchor, title in section.findall(PAGE) if title.endswith("(permanent)")}
    rows = {row.anchor for row in ROWS if row.kind == known_errors.PERMANENT}
    assert message == rows | {"start-failed"}


def test_every_known_message_is_tested() -> None:
    tested = {anchor for anchor, *_ in MESSAGES}
    tested |= {"script-missing", "proxy", "peer-never-came", "jax-left-early"}
    assert {row.anchor for row in known_errors.MESSAGES} == tested


def test_the_page_is_linked_from_the_readme() -> None:
    assert "](docs/failures.md)" in (ROOT / "README.md").read_text()


def test_a_missing_manual_download_is_not_taken_for_a_download_race() -> None:
    message = "mnist: its files belong into /home/ann/tensorflow_datasets/downloads/manual/mnist"
    assert find(message) is None
