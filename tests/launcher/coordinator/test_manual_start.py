"""A task that the user starts by hand gets a bundle unless it has its own program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster.coordinator import manual_start
from tfcluster.plans.plan import TaskId


@pytest.mark.parametrize(
    ("argv", "own", "bundle"),
    [
        (("python", "/b/workers/tfcluster_workers/boot.py", "script", "a.py"), False, "/b"),
        (("sleep", "9"), True, ""),
        (("serve",), True, ""),
    ],
)
def test_a_task_with_its_own_program_has_no_bundle(
    argv: tuple[str, ...], own: bool, bundle: str
) -> None:
    """`tfcluster env RUN ps:0` used to end with an IndexError for such a task."""
    plan, ps = plan_of("worker:0", "ps:0"), TaskId("ps", 0)
    changes: dict[str, Any] = {"command": replace(plan.task(ps).command, argv=argv)}
    task = replace(plan.task(ps), has_own_command=own, **changes)
    plan = replace(plan, tasks=(plan.tasks[0], task))
    assert manual_start._bundle(plan, ps) == bundle
