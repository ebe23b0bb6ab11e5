"""Errors that blame another task are recognized in the recorded output of real TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfcluster.supervision import log_errors
from tfcluster.supervision.failure import Failure, Kind
from tfcluster.supervision.log_errors import RaisedError

RECORDINGS = Path(__file__).parents[2] / "integration/faults/recordings.json"
RUNTIME = "tensorflow.python.framework.errors_impl"
GLOO = "[external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:20707"
NCCL = "possibly as a remote process exited or there was a network error"
CLOSED = "Collective ops is aborted by: Socket closed"
TRACEBACK = "Traceback (most recent call last):"
UNAVAILABLE_ERROR = (
    f'{TRACEBACK}\n  File "/job/main.py", line 3, in <module>\n{RUNTIME}.UnavailableError: '
)
PEER_LOST = f"{UNAVAILABLE_ERROR}{CLOSED}\nAdditional GRPC error information from remote target"
SCRIPT_ERROR = (
    f'{TRACEBACK}\n  File "/job/main.py", line 9, in <module>\nRuntimeError: training failed\n'
)
DIRECT_CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n\n"
WHILE_HANDLING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


def recorded() -> list[Any]:
    found = json.loads(RECORDINGS.read_text())
    return [
        pytest.param(message, role, id=f"{version}-{situation}-{role}")
        for version, about in found.items()
        for situation, roles in about["situations"].items()
        for role, message in roles.items()
        if message["exit_code"] or message["signal"]
    ]


@pytest.mark.parametrize(("message", "role"), recorded())
def test_recorded_tensorflow_errors_are_classified(message: dict[str, Any], role: str) -> None:
    """The error is read from the task's report, or from the log of a task without hooks."""
    log = "\n".join(message["last_lines"])
    error = None
    if message["exception"]:
        error = {"exception": message["exception"], "message": message["message"]}
        log += f"\n{TRACEBACK}\n{message['exception']}: {message['message']}\n"
    ends = message["exit_code"], message["signal"]
    for failure in (Failure("w", *ends, error=error), Failure("w", *ends, last_lines=log)):
        assert failure.is_collateral == (role == "survivor")


@pytest.mark.parametrize(
    ("exception", "message", "blames"),
    [
        (f"{RUNTIME}.UnavailableError", CLOSED, True),
        (f"{RUNTIME}.AbortedError", "cluster check alive failed, /job:worker is down", True),
        (f"{RUNTIME}.InternalError", "recvmsg:Connection reset by peer", True),
        ("grpc._channel._InactiveRpcError", 'details = "failed to connect to all addresses"', True),
        (f"{RUNTIME}.UnavailableError", "the storage service answers 503", False),
        (f"{RUNTIME}.ResourceExhaustedError", f"OOM; before: {CLOSED}", False),
        ("ValueError", "the dashboard said 'Socket closed'", False),
        ("jax.errors.JaxRuntimeError", f"INTERNAL: Gloo all-reduce failed: {GLOO}", True),
        ("jax.errors.JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory", False),
        ("RuntimeError", GLOO.replace("external/gloo", "/pytorch/third_party/gloo"), True),
        ("RuntimeError", "the loader's connection closed by peer", False),
        ("torch.distributed.DistBackendError", f"ncclRemoteError: A call failed, {NCCL}", True),
        ("torch.distributed.DistStoreError", "cannot parse the port", False),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", False),
        (
            f"{RUNTIME}.InvalidArgumentError",
            "Graph execution error:\n2 root error(s) found.\n  (0) INVALID_ARGUMENT: label 11 is"
            f" out of range\n  (1) UNAVAILABLE: {CLOSED}\n0 successful operations.",
            False,
        ),
        (
            f"{RUNTIME}.UnavailableError",
            f"Graph execution error:\n2 root error(s) found.\n  (0) UNAVAILABLE: {CLOSED}\n"
            f"  (1) UNAVAILABLE: {CLOSED}\n0 successful operations.",
            True,
        ),
    ],
)
def test_only_messages_of_tensorflows_runtime_blame_a_peer(
    exception: str, message: str, blames: bool
) -> None:
    assert log_errors.is_lost_peer_error(RaisedError(exception, message)) is blames


@pytest.mark.parametrize(
    ("traceback", "blames"),
    [
        (f"{PEER_LOST}{DIRECT_CAUSE}{SCRIPT_ERROR}", True),
        (f"{PEER_LOST}{WHILE_HANDLING}{SCRIPT_ERROR}", True),
        (f"{PEER_LOST}{WHILE_HANDLING}{SCRIPT_ERROR}{WHILE_HANDLING}{SCRIPT_ERROR}", True),
        (SCRIPT_ERROR, False),
        (f"{SCRIPT_ERROR}{DIRECT_CAUSE}{SCRIPT_ERROR}", False),
        (f"{PEER_LOST}\ncaught, trying again\n{SCRIPT_ERROR}", False),
        (f"{PEER_LOST}{DIRECT_CAUSE}{SCRIPT_ERROR}\ncaught, trying again\n{SCRIPT_ERROR}", False),
    ],
)
def test_an_exception_while_handling_a_lost_peer_is_collateral(
    traceback: str, blames: bool
) -> None:
    error = {"exception": "RuntimeError", "message": "training failed", "traceback": traceback}
    assert Failure("w", 1, None, error=error).is_collateral is blames
    assert Failure("w", 1, None, last_lines=f"epoch 2\n{traceback}").is_collateral is blames


@pytest.mark.parametrize(
    ("line", "is_lost_peer"),
    [
        ("E base_collective_executor.cc:252] StartAbort UNAVAILABLE: Socket closed", True),
        (':UNKNOWN:Error received from peer {grpc_message:"Socket closed", grpc_status:14}', True),
        ("the viewer went away: Socket closed", False),
    ],
)
def test_a_lost_peer_is_recognized_in_a_log_without_an_exception(
    line: str, is_lost_peer: bool
) -> None:
    assert log_errors.has_lost_peer_message(f"{line}\n") is is_lost_peer
    assert not log_errors.has_lost_peer_message(f"{line}\n" + "epoch 3\n" * 30)


def test_the_last_frame_of_the_users_code_is_named() -> None:
    log = (
        "WARNING: All log messages before absl::InitializeLog()\n"
        f"{TRACEBACK}\n"
        '  File "/job/main.py", line 7, in <module>\n    fit()\n'
        '  File "/job/model.py", line 3, in fit\n    model.fit(x)\n'
        "E0000 00:00:17.2 ring_alg.cc:291] Aborting\nRPC: /tensorflow.WorkerService/RecvBuf\n"
        '  File "/env/lib/python3.11/site-packages/keras/x.py", line 70, in handle\n'
        '  File "/usr/lib/python3.11/multiprocessing/pool.py", line 774, in get\n'
        "data.Broken: row 3\nand row 4\n"
    )
    assert log_errors.parse_exception(log) == RaisedError(
        "data.Broken", "row 3\nand row 4", "/job/model.py", 3
    )


def test_an_exception_caught_long_before_the_end_did_not_end_the_task() -> None:
    log = f"{SCRIPT_ERROR}" + "going on\n" * 500
    assert log_errors.parse_exception(log) is None
    assert Failure("w", 1, None, last_lines=log).kind is Kind.EXIT_CODE


def test_a_syntax_error_is_located_in_the_script_or_an_imported_file() -> None:
    log = "  File \"/job/main.py\", line 3\n    if x\n        ^\nSyntaxError: expected ':'\n"
    assert log_errors.parse_exception(log) == RaisedError(
        "SyntaxError", "expected ':'", "/job/main.py", 3
    )
    imported = f'{TRACEBACK}\n  File "/job/main.py", line 1, in <module>\n    import model\n'
    assert log_errors.parse_exception(imported + log.replace("main", "model")) == RaisedError(
        "SyntaxError", "expected ':'", "/job/model.py", 3
    )


KERAS_3 = (
    "Exception encountered when calling Sequential.call().\n\n\x1b[1mInput 0 with name 'None' of"
    " layer 'dense' is incompatible with the layer\x1b[0m\n\nArguments received by"
    " Sequential.call():\n  • inputs=tf.Tensor(shape=(None, 9), dtype=float32)\n"
    "  • training=False\n  • mask=None\n  • kwargs=<class 'inspect._empty'>"
)
KERAS_2 = (
    "Exception encountered when calling layer 'dense' (type Dense).\n\nno such axis\n\n"
    "Call arguments received by layer 'dense' (type Dense):\n  • inputs=tf.Tensor(shape=(2, 3))"
)


@pytest.mark.parametrize(
    ("message", "shortened"),
    [
        (
            KERAS_3,
            "Exception encountered when calling Sequential.call(): Input 0 with name 'None' of"
            " layer 'dense' is incompatible with the layer (main.py:10)",
        ),
        (
            KERAS_2,
            "Exception encountered when calling layer 'dense' (type Dense): no such axis"
            " (main.py:10)",
        ),
        (
            "Collective instance 770 expected type 0\nAdditional GRPC error information from remote"
            " target /job:worker/replica:0/task:0 while calling /tensorflow.WorkerService/X:\n"
            ':{"created":"@1795379759.26","grpc_message":"Collective instance 770"}\nRestart your'
            " program to reset. [Op:CollectiveReduceV2]",
            "Collective instance 770 expected type 0\nRestart your program to reset."
            " [Op:CollectiveReduceV2] (main.py:10)",
        ),
        (
            "{{function_node __wrapped__X}} Collective ops is aborted by: Collective"
            " ops is aborted by: Socket closed\nAdditional GRPC error information from remote"
            " target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/X:\n"
            ':UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}\n'
            "The error could be from a previous operation. Restart your program to reset.\n"
            "\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_1] name: ",
            "Collective ops is aborted by: Socket closed (main.py:10)",
        ),
        (
            "Graph execution error:\n\nDetected at node assert_less/Assert defined at (most recent"
            " call last):\n<stack traces unavailable>\nassertion failed: [label too big]\n"
            "\t [[IteratorGetNext]] [Op:__inference_train_function_374]",
            "assertion failed: [label too big]\n\t [[IteratorGetNext]] (main.py:10)",
        ),
        (
            "Graph execution error:\n\nDetected at node A defined at (most recent call last):\n"
            "<stack traces unavailable>\n2 root error(s) found.\n  (0) INVALID_ARGUMENT:  no axis\n"
            "\t [[{{node A}}]]\n  (1) CANCELLED: stopped\n0 successful operations.\n"
            "0 derived errors ignored. [Op:__inference_step_1]",
            "no axis\n\t [[{{node A}}]]\n  (1) CANCELLED: stopped (main.py:10)",
        ),
        (
            'in user code:\n\n    File "/job/main.py", line 29, in step  *\n        return a @ b\n'
            '    File "/tmp/x.py", line 2, in b\n        raise\n\n    ValueError: no such axis\n',
            "no such axis (main.py:10)",
        ),
    ],
    ids=["Keras 3", "Keras 2", "gRPC", "gRPC of 2.21", "no stack", "several errors", "AutoGraph"],
)
def test_noise_of_keras_and_grpc_is_removed(message: str, shortened: str) -> None:
    assert log_errors.shorten(message, place="(main.py:10)") == shortened


def test_an_exception_without_a_message_is_described_by_its_line() -> None:
    traceback = (
        f'{TRACEBACK}\n  File "/job/main.py", line 10, in <module>\n    assert x.shape == (1, 2)\n'
        "           ^^^^^^^^^^^^^^^^^\nAssertionError\n"
    )
    logged = Failure("w", 1, None, last_lines=traceback)
    assert logged.reason == "AssertionError in `assert x.shape == (1, 2)` (main.py:10)"
    error = {"exception": "AssertionError", "message": "", "file": "/job/main.py", "line": 10}
    reported = Failure("w", 1, None, error={**error, "traceback": traceback})
    assert reported.reason == logged.reason
    assert Failure("w", 1, None, error=error).reason == "AssertionError (main.py:10)"


@pytest.mark.parametrize("end", ["", "\n", "\n\t [[{{node A}}]] [Op:__inference_step_1]"])
def test_a_graph_error_with_no_more_than_its_stack_is_described_by_its_line(end: str) -> None:
    stack = "Detected at node A defined at (most recent call last):\n<stack traces unavailable>"
    error = {
        "exception": "tensorflow.python.framework.errors_impl.InvalidArgumentError",
        "message": f"Graph execution error:\n\n{stack}{end}",
        "file": "/job/main.py",
        "line": 10,
        "traceback": f'{TRACEBACK}\n  File "/job/main.py", line 10, in <module>\n    step(batch)\n',
    }
    reason = Failure("w", 1, None, error=error).reason
    assert reason == "InvalidArgumentError in `step(batch)` (main.py:10)"


def test_frames_of_tfcluster_and_cython_are_not_counted_as_user_code() -> None:
    wrapper = "/cache/tfcluster/bundles/56cd/workers/tfcluster_workers/keras3/trainer.py"
    log = (
        f'{TRACEBACK}\n  File "/job/main.py", line 10, in <module>\n    model.fit(x)\n'
        f'  File "{wrapper}", line 121, in call\n    return original()\nValueError: no\n'
    )
    assert log_errors.parse_exception(log) == RaisedError("ValueError", "no", "/job/main.py", 10)
    job = "/x/tfcluster_workers/jobs/broken.py"
    assert log_errors.parse_exception(log.replace("/job/main.py", job)) == RaisedError(
        "ValueError", "no", job, 10
    )
    cython = log.replace(wrapper, "h5py/h5f.pyx")
    assert log_errors.parse_exception(cython) == RaisedError("ValueError", "no", "/job/main.py", 10)
