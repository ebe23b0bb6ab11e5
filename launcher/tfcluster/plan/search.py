"""The place of a task in a KerasTuner search: the chief is its oracle, each worker a tuner.

KerasTuner reads three variables, all or none (keras_tuner/src/distribute/utils.py); the chief is
whoever has the letters "chief" in its KERASTUNER_TUNER_ID. A worker without a chief searches
alone and gets none of them. Each tuner trains by itself, so there is no TF_CONFIG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tfcluster.plan.attempt import Attempt
    from tfcluster.plan.plan import Plan, TaskId

ORACLE_IP: Final = "KERASTUNER_ORACLE_IP"
ORACLE_PORT: Final = "KERASTUNER_ORACLE_PORT"
TUNER_ID: Final = "KERASTUNER_TUNER_ID"
VARIABLES: Final = (ORACLE_IP, ORACLE_PORT, TUNER_ID)
FOLDER: Final = "TFCLUSTER_TUNER_DIR"


def environment(attempt: Attempt, task: TaskId) -> dict[str, str]:
    """KerasTuner's variables of `task`; a task that is started again keeps its tuner id."""
    chief = attempt.plan.chief
    if chief.job != "chief":
        return {}
    host, _, port = attempt.address(chief).rpartition(":")
    return {ORACLE_IP: host, ORACLE_PORT: port, TUNER_ID: task.file_name}


def folder(plan: Plan, *, run_id: str, own: str) -> str:
    """Where the search of this run is kept; all its tasks share it.

    `own` is the folder below the run's, on this machine; ``checkpoints.dir`` is what several
    hosts share. Those that join have a run each, and only the spec's name in common.
    """
    shared = plan.checkpoints.dir
    part = plan.name if plan.joins else run_id
    return f"{shared.rstrip('/')}/tuner/{part}" if shared else own
