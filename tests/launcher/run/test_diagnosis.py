"""Of several failed tasks, one is the cause; what it said is shown in brief, with a cure."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tfcluster.run.diagnosis import Failure, root_cause, to_json

ABORTED = (
    "tensorflow.python.framework.errors_impl.UnavailableError: "
    "Collective ops is aborted by: Socket closed"
)


def raised(exception: str, message: str, file: str = "/job/main.py", line: int = 12) -> Any:
    """An `error` report."""
    return {"exception": exception, "message": message, "file": file, "line": line}


def test_the_first_failure_that_is_not_a_consequence_is_the_cause() -> None:
    victim = Failure("worker:0", 1, None, last_lines=ABORTED)
    cause = Failure("worker:1", 1, None, error=raised("ValueError", "no", "train.py", 3))
    assert root_cause([victim, cause]) is cause
    facts = to_json([victim, cause])
    assert facts is not None
    assert facts["root_cause"]["reason"] == "ValueError: no (train.py:3)"
    assert facts["collateral"] == ("worker:0",)


def test_a_killed_task_follows_nobody_whatever_it_said_last() -> None:
    killed = Failure("worker:1", None, signal.SIGKILL, last_lines=ABORTED)
    assert root_cause([Failure("worker:0", 1, None, last_lines=ABORTED), killed]) is killed
    assert killed.reason == "killed by SIGKILL"


def test_nothing_failed_nothing_is_said() -> None:
    assert to_json([]) is None


def test_a_message_that_holds_a_tensor_is_shown_by_its_ends() -> None:
    values = "\n".join(f"  [0.{row}, 0.{row}]," for row in range(40))
    message = f"Attempt to convert a value (PerReplica:{{\n{values}\n}})"
    failure = Failure("worker:0", 1, None, error=raised("ValueError", message))
    shown = failure.reason.splitlines()
    assert len(shown) == 5
    assert shown[2] == "… 38 lines …"
    assert (shown[0], shown[-1]) == (
        "ValueError: Attempt to convert a value (PerReplica:{",
        "}) (main.py:12)",
    )
    assert "import tf_keras as keras" in str(failure.hint)


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("Collective ops must be configured at program startup", "before any other"),
        ("Could not start gRPC server", "port 0"),
        ("Invalid reduction dimension 0 for input with 0 dimensions", "tf_keras"),
        ("module 'tensorflow' has no attribute 'estimator'", "TensorFlow 2.15"),
        ("not enough for FILE based sharding", "DATA"),
        ("ModuleNotFoundError: No module named 'wandb'", "--python"),
    ],
)
def test_known_words_come_with_their_cure(said: str, cure: str) -> None:
    assert cure in str(Failure("worker:0", 1, None, last_lines=said).hint)
