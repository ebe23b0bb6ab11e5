"""The mistakes a job tells its user in one line: jobs/endings.py turns each into message and exit.

JobError
├── OptionError              jobs/options.py: a command line that cannot work
├── NoTpuError               strategy.py: strategy.name is tpu
├── KerasChoiceError         keras_choice.py
├── NoEstimatorError         estimator_needs.py
├── ClusterChangedError      cluster_check.py: a script that joins another cluster than its run's
└── DataError                data/errors.py, with kinds of its own
"""

from __future__ import annotations


class JobError(Exception):
    """What is wrong, and what to do, in words for the one who started the job."""


class OptionError(JobError, ValueError):
    """Options that do not fit each other or the cluster."""


class ClusterChangedError(JobError, RuntimeError):
    """The script sets or removes TF_CONFIG, or names its peers itself, and would not meet them."""

    def __init__(self, message: str, *, place: tuple[str, int] | None = None) -> None:
        super().__init__(message)
        self.place = place
        """File and line of the change; None: where the exception is raised."""


class NoTpuError(JobError):
    """`strategy.name` is tpu, and there is none."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"strategy tpu, but no TPU was found: {why}. Set TPU_NAME to the TPU's name or its "
            "grpc:// address, or choose another strategy.name"
        )
