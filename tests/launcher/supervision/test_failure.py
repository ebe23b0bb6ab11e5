"""A failure has a kind, a reason, a hint and a section of docs/failures.md."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.supervision.failure import Failure, Kind

RUNTIME = "tensorflow.python.framework.errors_impl"
ABORTED = "Collective ops is aborted by: Socket closed"
HEARTBEAT = (
    "F0000 00:00:17.5 client.h:77] Terminating process because the coordinator detected missing\n"
    "heartbeats. The following tasks are unhealthy (stopped sending heartbeats):\n"
)
ASKED = "E external/tsl/coordination_service_agent.cc:770] Coordination agent is set to ERROR\n"
OWN_CHECK = "F tensorflow/core/framework/tensor.cc:1] Check failed: dtype() == expected\n"
CRASH = """\
step 3
Fatal Python error: Segmentation fault

Thread 0x00007f20236dc6c0 (most recent call first):
  File "/job/reader.py", line 99 in read
  File "/opt/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f20243e4b80 (most recent call first):
  File "/opt/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/job/main.py", line 5 in crash
  File "/job/main.py", line 8 in <module>
  File "/opt/tfcluster_workers/boot.py", line 170 in run_script

Extension modules: numpy.core._multiarray_umath (total: 1)
"""
# A thread of TensorFlow, which has no Python stack, has failed a check.
ABORT = (
    """\
Fatal Python error: Aborted

Thread 0x00007f20236dc6c0 (most recent call first):
  File "/job/reader.py", line 99 in read

Thread 0x00007f20243e4b80 (most recent call first):
  File "/opt/lib/python3.11/site-packages/keras/src/trainer.py", line 371 in fit
  File "/job/run.py", line 7 in <module>
"""
    + '  File "/job/run.py", line 1 in f\n' * 40
)
TRACEBACK = """\
loading data
Traceback (most recent call last):
  File "/job/train.py", line 31, in <module>
    main()
  File "/opt/lib/python3.11/site-packages/keras/src/trainer.py", line 7, in fit
    raise ValueError("no")
ValueError: no
"""


def error(exception: str, message: str, **more: Any) -> dict[str, Any]:
    return {"exception": exception, "message": message, "file": "/job/main.py", "line": 12} | more


USAGE = "usage: train.py [-h] [--epochs EPOCHS]\ntrain.py: error: "
CLICK = "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: "
ABSL = "FATAL Flags parsing error:\n  "
UNKNOWN_FLAG = "Unknown command line flag 'epoch'. Did you mean: epochs ?"


def ended(
    exit_code: int | None = 1, number: int | None = None, log: str = "", **facts: Any
) -> Failure:
    return Failure("worker:1", exit_code, number, last_lines=log, **facts)


def fails(exception: str, message: str, **more: Any) -> Failure:
    return ended(error=error(exception, message, **more))


CALL = "subprocess.CalledProcessError: Command '['python', 'fit.py']' (main.py:12)"


def calls(child_code: int, **facts: Any) -> Failure:
    """Return the failure of a script that raises because the child that trains has failed."""
    message = "Command '['python', 'fit.py']'"
    raised = error("subprocess.CalledProcessError", message, child_code=child_code)
    return ended(error=raised, **facts)


@pytest.mark.parametrize(
    ("failure", "kind", "reason"),
    [
        (ended(3), Kind.EXIT_CODE, "exit code 3"),
        (ended(42), Kind.PREEMPTED, "preempted: it left with exit code 42 after saving its state"),
        (ended(42, log=ABORTED), Kind.PREEMPTED, None),
        (ended(143), Kind.EXIT_CODE, "exit code 143"),
        (ended(143, saved=True), Kind.PREEMPTED, None),
        (ended(None, 15), Kind.SIGNAL, "killed by SIGTERM"),
        (ended(None, 9), Kind.SIGNAL, "killed by SIGKILL"),
        (ended(None, 9, ABORTED), Kind.SIGNAL, "killed by SIGKILL"),
        (ended(None, 9, out_of_memory="of 2 GB"), Kind.OUT_OF_MEMORY, "out of memory: of 2 GB"),
        (ended(137, out_of_memory="of 2 GB"), Kind.OUT_OF_MEMORY, "out of memory: of 2 GB"),
        (ended(None, 11, out_of_memory="of 2 GB"), Kind.SIGNAL, "killed by SIGSEGV"),
        (ended(139), Kind.SIGNAL, "killed by SIGSEGV (exit code 139)"),
        (ended(256 - 11), Kind.SIGNAL, "killed by SIGSEGV (exit code 245)"),
        (ended(247, out_of_memory="of 2 GB"), Kind.OUT_OF_MEMORY, "out of memory: of 2 GB"),
        (ended(250, log=ASKED), Kind.COLLATERAL, None),
        (ended(255), Kind.EXIT_CODE, "exit code 255"),
        (calls(-9), Kind.SIGNAL, CALL),
        (calls(-9, out_of_memory="of 2 GB"), Kind.OUT_OF_MEMORY, None),
        (calls(-6, log=HEARTBEAT), Kind.COLLATERAL, None),
        (calls(1, log=ASKED), Kind.COLLATERAL, None),
        (calls(1), Kind.EXCEPTION, CALL),
        (calls(42), Kind.PREEMPTED, None),
        (ended(None, 11, CRASH), Kind.SIGNAL, "killed by SIGSEGV: segmentation fault in main.py:5"),
        (ended(None, 9, CRASH), Kind.SIGNAL, "killed by SIGKILL"),
        (
            ended(None, 6, HEARTBEAT + ABORT),
            Kind.COLLATERAL,
            "killed by SIGABRT: aborted in run.py:7",
        ),
        (ended(200), Kind.EXIT_CODE, "exit code 200"),
        (ended(None, 36), Kind.SIGNAL, "killed by signal 36"),
        (ended(None, 6, HEARTBEAT), Kind.COLLATERAL, "killed by SIGABRT"),
        (ended(134, log=ASKED), Kind.COLLATERAL, None),
        (ended(None, 6, OWN_CHECK), Kind.SIGNAL, "killed by SIGABRT"),
        (ended(1, log=TRACEBACK), Kind.EXCEPTION, "ValueError: no (train.py:31)"),
        (ended(2, log=TRACEBACK), Kind.EXIT_CODE, "exit code 2"),
        (ended(1, log="done\n"), Kind.EXIT_CODE, "exit code 1"),
        (fails("KeyError", "'x'"), Kind.EXCEPTION, "KeyError: 'x' (main.py:12)"),
        (fails("KeyError", ""), Kind.EXCEPTION, "KeyError (main.py:12)"),
        (fails("ImportError", "no", file=None), Kind.PERMANENT, "ImportError: no"),
        (fails(f"{RUNTIME}.UnknownError", "Could not start gRPC server"), Kind.PORT_TAKEN, None),
        (fails("OSError", "[Errno 98] Address already in use"), Kind.EXCEPTION, None),
        (fails(f"{RUNTIME}.InternalError", ABORTED), Kind.COLLATERAL, None),
        (ended(None, None, observed=Kind.LATE, description="it hung"), Kind.LATE, "it hung"),
        (ended(None, None, observed=Kind.FROZEN), Kind.FROZEN, "frozen"),
        (ended(0, observed=Kind.PERMANENT, description="no trial"), Kind.PERMANENT, "no trial"),
    ],
)
def test_the_kind_and_the_reason_follow_from_the_end_of_the_task(
    failure: Failure, kind: Kind, reason: str | None
) -> None:
    assert failure.kind is kind
    assert reason in (None, failure.reason)
    assert failure.is_collateral == (kind is Kind.COLLATERAL)


def test_tensorflows_exceptions_have_short_names() -> None:
    failure = fails(f"{RUNTIME}.UnknownError", "Could not start gRPC server")
    assert failure.reason == "UnknownError: Could not start gRPC server (main.py:12)"
    assert failure.signature == (f"{RUNTIME}.UnknownError", "/job/main.py", 12)
    assert fails("requests.exceptions.Timeout", "x").reason.startswith("requests.exceptions.T")


def test_a_message_with_a_tensor_is_cut_in_the_middle() -> None:
    values = "\n".join(f"  [0.{row}, 0.{row}]," for row in range(40))
    message = f"Attempt to convert a value (PerReplica:{{\n{values}\n}})"
    shown = fails("ValueError", message).reason.splitlines()
    assert len(shown) == 5
    assert shown[2] == "… 38 lines …"
    assert shown[0] == "ValueError: Attempt to convert a value (PerReplica:{"
    assert shown[-1] == "}) (main.py:12)"


def test_a_graph_error_shows_the_cause_without_the_stack_of_the_graph() -> None:
    """TensorFlow 2.15 and 2.21 write the message in this form."""
    stack = "".join(f'  File "/env/keras/training.py", line {n}, in step\n\n' for n in range(30))
    message = (
        "Graph execution error:\n\nDetected at node loss/Xent defined at (most recent call last):\n"
        f"{stack}"
        "Received a label value of 11 which is outside the valid range of [0, 2).\n"
        "\t [[{{node loss/Xent}}]] [Op:__inference_train_function_373]"
    )
    assert fails(f"{RUNTIME}.InvalidArgumentError", message).reason == (
        "InvalidArgumentError: Received a label value of 11 which is outside the valid range of"
        " [0, 2).\n\t [[{{node loss/Xent}}]] (main.py:12)"
    )


def test_an_endless_line_is_cut() -> None:
    assert len(fails("ValueError", "x" * 5000).reason) < 500


def test_a_sigkill_without_evidence_names_possible_causes() -> None:
    failure = ended(None, signal.SIGKILL, "ImportError: an optional one, caught\n")
    assert "out of memory" in str(failure.hint)
    assert failure.docs == "docs/failures.md#sigkill"


@pytest.mark.parametrize(
    ("failure", "anchor"),
    [
        (ended(None, 11), "native-crash"),
        (ended(None, 4), "illegal-instruction"),
        (ended(127), "command-not-found"),
        (ended(3), None),
        (fails("KeyError", "'x'"), None),
        (ended(None, 9, out_of_memory="x"), "out-of-memory"),
        (ended(42), "preempted"),
        (ended(None, None, observed=Kind.NODE_LOST, description="gone"), "node-lost"),
        (ended(log="'https' scheme not supported in proxy URI\n" + "x\n" * 99), "proxy"),
        (ended(log="'https' scheme not supported in proxy URI\n" + TRACEBACK), None),
        (
            Failure(
                "w",
                None,
                None,
                observed=Kind.LATE,
                last_lines="scheme not supported in proxy URI\n" + "x\n" * 99,
            ),
            "proxy",
        ),
    ],
)
def test_failures_link_to_their_section_of_the_documentation(
    failure: Failure, anchor: str | None
) -> None:
    assert failure.docs == (anchor and f"docs/failures.md#{anchor}")


@given(
    st.none() | st.integers(0, 255),
    st.none() | st.integers(1, 64),
    st.text(max_size=200),
    st.none() | st.fixed_dictionaries({"exception": st.text(), "message": st.text()}),
    st.sampled_from([None, "evidence"]),
    st.sampled_from([None, Kind.LATE, Kind.NODE_LOST, Kind.START_FAILED]),
)
def test_every_end_has_a_kind_and_a_reason(
    exit_code: int | None,
    number: int | None,
    description: str,
    reported: dict[str, str] | None,
    memory: str | None,
    observed: Kind | None,
) -> None:
    failure = Failure(
        "worker:0",
        exit_code,
        number,
        error=reported,
        last_lines=description,
        out_of_memory=memory,
        observed=observed,
    )
    assert failure.kind in Kind
    assert failure.reason.count("\n") < 8
    assert (failure.hint is None) == (failure.docs is None)
    assert failure.is_collateral == (failure.kind is Kind.COLLATERAL)


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (2, f"{USAGE}unrecognized arguments: --epoch 3\n", "unrecognized arguments: --epoch 3"),
        (2, f"{CLICK}No such option: --epoch\n", "No such option: --epoch"),
        (1, f"{ABSL}{UNKNOWN_FLAG}\nPass --helpshort to see help on flags.\n", UNKNOWN_FLAG),
    ],
    ids=["argparse", "click", "absl"],
)
def test_rejected_arguments_are_reported_with_the_scripts_message(
    code: int, log: str, reason: str
) -> None:
    """The reason used to be "exit code 2", and the task was restarted."""
    failure = ended(code, log=log)
    assert failure.reason == f"exit code {code}: {reason}"
    assert failure.kind is Kind.PERMANENT
    assert failure.docs == "docs/failures.md#refused-arguments"


@pytest.mark.parametrize(
    ("code", "log"),
    [(3, USAGE + "no"), (2, "worker: error rate 0.3\n"), (1, USAGE + "no"), (2, "")],
)
def test_other_exit_codes_and_output_do_not_count_as_rejected_arguments(
    code: int, log: str
) -> None:
    failure = ended(code, log=log)
    assert (failure.reason, failure.kind) == (f"exit code {code}", Kind.EXIT_CODE)


@pytest.mark.parametrize(
    ("text", "blames"),
    [
        (f"training failed: {ABORTED}", True),
        ("Connection reset by peer", False),
        ("no data in ./mnist", False),
    ],
)
def test_a_script_that_exits_with_a_message_about_a_lost_peer_is_collateral(
    text: str, blames: bool
) -> None:
    failure = ended(error=error("SystemExit", text))
    assert failure.is_collateral is blames
