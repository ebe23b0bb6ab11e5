"""The order of tests, and the tests that one process runs together, with `--dist loadgroup`."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "tests/integration/test_packaging.py": "packaging",
    "tests/integration/test_killed.py::test_five_of_five_kills_leave_no_process": "kills",
    "tests/integration/faults/test_thieves.py": "kills",
    "tests/integration/test_output.py::test_every_line_of_four_workers": "throughput",
    "tests/launcher/agent/tasks/test_output.py::test_four_tasks_with_much_output": "throughput",
    "tests/integration/slurm/test_contract.py": "contract",
    "tests/integration/kubernetes/test_contract.py": "kubernetes contract",
    "tests/integration/kubernetes/test_faults_lab.py": "kubernetes faults",
    "tests/integration/kubernetes/test_faults_submitted.py": "kubernetes faults",
    "tests/integration/kubernetes/test_lab.py": "kubernetes lab",
    "tests/integration/hosts/test_stand_ins.py": "many hosts",
    "tests/launcher/test_api.py": "api",
    "tests/integration/test_notebook.py": "notebook",  # they share one kernel
    "tests/web/": "web",  # one Chromium at a time
    "tests/launcher/spec/test_any_input.py": "examples",
    "tests/launcher/nodes/test_reports.py": "examples",
    "tests/launcher/supervision/test_failure.py": "examples",
    "tests/launcher/rundir/test_chaos.py": "examples",
}
"""Prefixes of the ids of tests that one process runs one after the other.

They share something expensive (Hypothesis reads all of Unicode before its first text), or would
slow down all others if they ran at once. The mark `xdist_group` could say this in the tests, but
xdist 3.8 cannot write it into the ids of pytest 9.2.
"""
BY_FILE = (
    "tests/contracts/",
    *(
        f"tests/launcher/{package}/"
        for package in (
            *("checkpoints", "cli", "coordinator", "discovery", "nodes", "plans"),
            *("preflight", "rundir", "scaling", "spec", "supervision", "ui", "web"),
        )
    ),
)
"""Folders of quick tests, handed out by file: handing out each costs more than running many."""
EXTENDED = tuple(
    f"tests/integration/{nodes}/" for nodes in ("hosts", "docker", "slurm", "kubernetes")
)
"""Folders that `make test` leaves to `make test-extended`: real hosts, containers and Slurm."""
EXTENDED_WITH_TENSORFLOW = (
    "tests/integration/faults/",  # the same faults with stubs are in `make test`
    # each Keras release and each way to train, compared with one process
    *("tests/matrix/", "tests/parity/test_parity.py", "tests/upstream/"),
    *(f"tests/workers/test_keras3.py::test_{name}" for name in ("two", "an", "the", "a_changed")),
    "tests/workers/test_estimator.py",
    "tests/integration/jobs/test_custom_loop.py::test_every_keras",
    "tests/integration/jobs/test_custom_loop.py::test_steps",
    "tests/integration/jobs/test_custom_loop.py::test_a_preempted",
    # the search, and details of the jobs
    *("tests/integration/jobs/test_tuner.py", "tests/integration/jobs/test_show_shards.py"),
    *("tests/integration/jobs/test_tpu.py", "tests/workers/test_tpu.py"),
    "tests/integration/jobs/test_keras_jax.py",  # an environment of its own
    *("tests/workers/test_options_at_work.py", "tests/workers/test_data_prepare.py"),
    *("tests/workers/test_data.py", "tests/workers/test_batch_page.py"),
    "tests/launcher/checkpoints/test_with_tensorflow.py",
    "tests/integration/test_scale.py",
    "tests/integration/test_devices.py::test_doctor",
)
"""Prefixes of the ids of tests that are extended where they start TensorFlow.

`make test` keeps one run with real TensorFlow per promise of the documentation, on both versions.
"""


def is_extended(item: pytest.Item) -> bool:
    """Return whether a test belongs to `make test-extended`."""
    starts_tensorflow = item.get_closest_marker("tensorflow") is not None
    prefixes = (*EXTENDED, *EXTENDED_WITH_TENSORFLOW) if starts_tensorflow else EXTENDED
    return item.nodeid.startswith(prefixes)


class OneByOne(LoadScopeScheduling):  # type: ignore[misc]
    """Each process takes its next test, or its next file of quick tests, when it is free."""

    def _split_scope(self, nodeid: str) -> str:
        groups = (group for start, group in TOGETHER.items() if nodeid.startswith(start))
        alone = nodeid.partition("::")[0] if nodeid.startswith(BY_FILE) else nodeid
        return next(groups, alone)


def place(item: pytest.Item) -> int:
    """Return a sort key: slow tests first, as most of them wait; tests with TensorFlow last."""
    if item.get_closest_marker("tensorflow"):
        return 2
    return 0 if item.get_closest_marker("slow") else 1
