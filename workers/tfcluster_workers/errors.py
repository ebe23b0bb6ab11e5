"""The errors that a job reports in one line; jobs/parts/job_errors.py prints them and exits.

JobError
├── OptionError              jobs/parts/options.py: options that cannot work together
├── NoTpuError               strategy.py: strategy.name is tpu, and there is no TPU
├── NoGpuError               hooks/devices.py: the plan gives the task GPUs, and TensorFlow has none
├── KerasChoiceError         keras_choice.py: the requested Keras is not installed or cannot work
├── Keras3Error              keras3/release.py: this Keras 3 cannot train on several workers
├── NoEstimatorError         jobs/parts/estimator_setup.py: TensorFlow has no Estimator
├── OtherModelError          jobs/parts/saved_models.py: a checkpoint of another model
├── UnknownRunError          gathered.py: no run of this name
├── NoCheckpointError        gathered.py: a run or folder without checkpoints
├── CallError                function.py: a pickled function that cannot be loaded here
├── ClusterChangedError      hooks/cluster_check.py: the script joins another cluster than its run's
├── NotServingError          server.py: a ps or worker makes the strategy that only the chief makes
└── DataError                data/errors.py, with subclasses
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


class JobError(Exception):
    """An error that the user can fix; its message says what is wrong and what to do."""

    cause = ""
    """The launcher's name of the cause, by which it finds the hint (`supervision.known_errors`)."""


class OptionError(JobError, ValueError):
    """Options that do not work together or with the cluster."""


class CallError(JobError):
    """A function or cell from another process that cannot be loaded, or gives no value."""

    @classmethod
    def of_other_python(cls, written_by: Sequence[int]) -> CallError:
        needed, own = (".".join(map(str, found[:2])) for found in (written_by, sys.version_info))
        return cls(
            f"the function was pickled by Python {needed}, and {sys.executable} is Python {own}:"
            f" bytecode loads only in the same minor version. Choose a Python {needed} for the"
            f" tasks (python=PATH), or start the run from Python {own}"
        )

    @classmethod
    def of_missing_module(cls, error: ModuleNotFoundError) -> CallError:
        return cls(
            f"the function needs the module {error.name}, which {sys.executable} does not find."
            " Install it there, put it into the working directory, or send it with the function:"
            f" cloudpickle.register_pickle_by_value({error.name})"
        )

    @classmethod
    def of_content(cls, error: Exception) -> CallError:
        return cls(
            "the function or its arguments cannot be unpickled here:"
            f" {type(error).__name__}: {error}"
        )


class ClusterChangedError(JobError, RuntimeError):
    """The script changes TF_CONFIG or lists its peers itself, and would not reach them."""

    def __init__(
        self, message: str, *, place: tuple[str, int] | None = None, cause: str = "cluster-changed"
    ) -> None:
        super().__init__(message)
        self.place, self.cause = place, cause
        """`place`: file and line of the change; None for where the exception is raised."""


class NotServingError(JobError, RuntimeError):
    """A ps or worker of a parameter-server job makes the strategy instead of serving the chief."""

    cause = "not-serving"

    def __init__(self, task: str) -> None:
        super().__init__(
            f"{task} makes a ParameterServerStrategy, which only the chief may make: TensorFlow"
            f" would wait for the server that {task} should run"
        )


class NoTpuError(JobError):
    """`strategy.name` is tpu, and there is no TPU."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"strategy tpu, but no TPU was found: {why}. Set TPU_NAME to the TPU's name or its "
            "grpc:// address, or choose another strategy.name"
        )


class NoGpuError(JobError, RuntimeError):
    """The plan gives this task GPUs, and TensorFlow registers none: it would train on the CPU."""

    def __init__(self, given: str, why: str, cause: str = "") -> None:
        self.cause = f"no-gpu-{cause}" if cause else "no-gpu"
        gpus = f"GPU {given}" if given[:1].isdigit() else "GPUs"
        super().__init__(f"this task was given {gpus}, but TensorFlow registers none: {why}")
