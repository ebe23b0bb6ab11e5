"""tfcluster launches multi-worker TensorFlow jobs: this half never imports TensorFlow.

The names of the Python API (docs/guides/python_api.md) are imported when they are first used.
"""

__version__ = "0.2.0"

TYPE_CHECKING = False  # the module `typing` would take longer to import than all of this
if TYPE_CHECKING:
    from tfcluster.api import get_run as get_run
    from tfcluster.api import load as load
    from tfcluster.api import plan as plan
    from tfcluster.api import run as run
    from tfcluster.api import runs as runs
    from tfcluster.api import start as start
    from tfcluster.checkpoints.store import Gathered as Gathered
    from tfcluster.discovery.planning import Planned as Planned
    from tfcluster.errors import CollateralError as CollateralError
    from tfcluster.errors import DeadlineError as DeadlineError
    from tfcluster.errors import FunctionError as FunctionError
    from tfcluster.errors import InterpreterError as InterpreterError
    from tfcluster.errors import JobEndedError as JobEndedError
    from tfcluster.errors import NodeLostError as NodeLostError
    from tfcluster.errors import NoProgressError as NoProgressError
    from tfcluster.errors import PortInUseError as PortInUseError
    from tfcluster.errors import PreflightError as PreflightError
    from tfcluster.errors import PrepareError as PrepareError
    from tfcluster.errors import Problem as Problem
    from tfcluster.errors import RunFolderError as RunFolderError
    from tfcluster.errors import SetupError as SetupError
    from tfcluster.errors import SpecError as SpecError
    from tfcluster.errors import TfclusterError as TfclusterError
    from tfcluster.errors import UnknownRunError as UnknownRunError
    from tfcluster.errors import UsageError as UsageError
    from tfcluster.run_handle import JobFailed as JobFailed
    from tfcluster.run_handle import LogLine as LogLine
    from tfcluster.run_handle import Result as Result
    from tfcluster.run_handle import Run as Run
    from tfcluster.rundir.registry import DamagedRunError as DamagedRunError
    from tfcluster.rundir.snapshot import TaskSnapshot as TaskSnapshot
    from tfcluster.rundir.states import Status as Status
    from tfcluster.spec.load import LoadedSpec as LoadedSpec

_NAMES = {
    "api": "get_run load plan run runs start",
    "checkpoints.store": "Gathered",
    "discovery.planning": "Planned",
    "errors": (
        "CollateralError DeadlineError FunctionError InterpreterError JobEndedError NodeLostError "
        "NoProgressError PortInUseError PreflightError PrepareError Problem RunFolderError "
        "SetupError SpecError TfclusterError UnknownRunError UsageError"
    ),
    "run_handle": "JobFailed LogLine Result Run",
    "rundir.registry": "DamagedRunError",
    "rundir.snapshot": "TaskSnapshot",
    "rundir.states": "Status",
    "spec.load": "LoadedSpec",
}
"""Module → the names of the API that it defines."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_MODULES]


if not TYPE_CHECKING:  # a type checker would find every name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        _require_python()
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def load_ipython_extension(shell: object) -> None:
    """Define ``%%tfcluster``; called by ``%load_ext tfcluster``."""
    _require_python()
    from tfcluster.ipython import load_ipython_extension

    load_ipython_extension(shell)


def _require_python() -> None:
    from tfcluster.__main__ import explain_old_python

    if problem := explain_old_python():
        raise ImportError(problem)


def __dir__() -> list[str]:
    return sorted(__all__)
