"""All metrics by name; a metric's module is imported only when the metric is measured.

Some need root, docker, sshd or TensorFlow, and their imports may not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module

from benchmarks.harness import Metric


@dataclass(frozen=True, slots=True)
class Entry:
    """The function that makes a metric, and its description."""

    function: str
    """The module and its function, `MODULE:FUNCTION`."""
    about: str
    is_quick: bool = False
    """True for a metric that needs only this machine and a few seconds: `make bench-quick`."""
    options: Mapping[str, object] = field(default_factory=dict)

    def make(self, *, quick: bool = False) -> Metric:
        module, _, maker = self.function.partition(":")
        made = getattr(import_module(f"benchmarks.{module}"), maker)(quick=quick, **self.options)
        assert isinstance(made, Metric)
        return made


_NEWEST, _TF215 = {"venv": ".venv"}, {"venv": ".venv-tf215"}
METRICS: Mapping[str, Entry] = {
    "start": Entry("starting:start", "Enter to the last stub's first instruction", True),
    "exit": Entry("starting:exit_", "the last stub's end to the prompt", True),
    "fail-fast": Entry("failing:fail_fast", "one task's failure to the end of the others", True),
    "restart": Entry("failing:restart", "a crash to the next attempt's first instruction", True),
    "orphans": Entry("orphans:orphans", "processes left after kill -9 of the launcher", True),
    "logs": Entry("logs:logs", "a merged stream of 800,000 lines: time, lost lines", True),
    "memory": Entry("idle:memory", "the launcher's own memory while tasks sleep", True),
    "idle-cpu": Entry("idle:idle_cpu", "the launcher's processor time while tasks sleep", True),
    "port-theft": Entry("ports:port_theft", "another process binds the workers' ports first", True),
    "first-step": Entry(
        "first_step:first_step",
        "Enter, and a crash, to the first step of 4 workers, newest TensorFlow",
        options={"venv": ".venv", "preload": 0.72, "warm": 0.30},
    ),
    "first-step-tf215": Entry(
        "first_step:first_step",
        "the same, TensorFlow 2.15",
        options={"venv": ".venv-tf215", "preload": 0.65, "warm": 0.45},
    ),
    "pss": Entry(
        "first_step:pss", "memory of 4 workers together, newest TensorFlow", options=_NEWEST
    ),
    "pss-tf215": Entry("first_step:pss", "the same, TensorFlow 2.15", options=_TF215),
    "tax": Entry("throughput:tax", "examples/s of 2 workers, newest TensorFlow", options=_NEWEST),
    "tax-tf215": Entry("throughput:tax", "the same, TensorFlow 2.15", options=_TF215),
    "fits": Entry("throughput:fits", "4 workers, several fits, newest TensorFlow", options=_NEWEST),
    "fits-tf215": Entry("throughput:fits", "the same, TensorFlow 2.15", options=_TF215),
    **{
        f"threads-{workers}": Entry(
            "throughput:threads",
            f"{workers} workers with several numbers of threads, newest TensorFlow",
            options={**_NEWEST, "workers": workers},
        )
        for workers in (2, 3, 4, 8)
    },
    "thousand-tasks": Entry("thousand_tasks:thousand_tasks", "1,000 stubs on 50 agents here"),
    "four-thousand-tasks": Entry(
        "thousand_tasks:thousand_tasks",
        "4,000 stubs on 50 agents here (16 GB)",
        options={"thousands": 4},
    ),
    "many-hosts": Entry("many_hosts:many_hosts_up", "start of 64 hosts through ssh (sshd)"),
    "containers": Entry("containers:containers", "start of four containers (docker)"),
    "slurm": Entry("slurm:first_step", "submit to first step at Slurm (root)", options=_NEWEST),
    "slurm-tf215": Entry("slurm:first_step", "the same, TensorFlow 2.15", options=_TF215),
    "kubernetes": Entry(
        "kubernetes:first_step", "submit to first step in Kubernetes (root)", options=_NEWEST
    ),
    "gather": Entry("gathering:gather", "a checkpoint of 1 GB is gathered (root, sshd)"),
    "gather-beside-training": Entry(
        "gathering:beside", "effect of gathering on training (root, sshd)"
    ),
}
