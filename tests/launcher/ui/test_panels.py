"""Panels are readable at 40, 80 and 120 columns; ``golden/`` holds them as text.

After an intended change, run with ``TFCLUSTER_WRITE_GOLDEN=1`` and review the difference.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pyte
import pytest
from tests.launcher.conftest import plan_of

from tfcluster.plans.plan import (
    Command,
    Interpreter,
    NodePlan,
    Plan,
    TaskId,
)
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status
from tfcluster.supervision.failure import Failure
from tfcluster.supervision.verdicts import diagnosis
from tfcluster.ui.panels import (
    checkpoints_grid,
    closing_panel,
    root_cause_panel,
    runs_grid,
    status_panel,
    tasks_grid,
)
from tfcluster.ui.plan_view import describe_ports, format_plan, start_panel
from tfcluster.ui.render import (
    Facts,
    Grid,
    Panel,
    part_lines,
    plain_text,
    render,
    screen_text,
    stdout_text,
)
from tfcluster.ui.terminal import Terminal

OpenScreen = Callable[..., tuple[int, TextIO]]

GOLDEN = Path(__file__).parent / "golden"
START = 1_700_000_000.0
PATHS = RunPaths(Path("/home/anna/.local/state/tfcluster/runs/mnist-2w-20260914-153012-k7f3"))
PORTS = {TaskId("worker", 0): 40001, TaskId("worker", 1): 40002}


PYTHON = Interpreter(
    "/home/anna/mnist/.venv/bin/python",
    ".venv above the workdir",
    "3.11.4",
    {"tensorflow": "2.21.0", "keras": "3.15.1", "tf-keras": "2.21.0", "numpy": "2.4.0"},
)
LONG_NOTE = (
    "the checkpoints are many: `tfcluster checkpoints k7f3 --copy x` takes one, and"
    " --set checkpoints.keep=9 keeps more of them"
)


def plan() -> Plan:
    command = Command(("python", "train.py"), (), "/home/anna/mnist")
    made = plan_of(name="mnist-2w")
    return replace(
        made,
        spec_path="/home/anna/mnist/tfcluster.json",
        nodes=(NodePlan("local", "local", PYTHON, "/home/anna/mnist"),),
        tasks=tuple(replace(t, command=command, cores=(t.id.index,)) for t in made.tasks),
        settings={"communication": "RING"},
        notes=("Keras 3 fails across workers, so tf_keras is used (TF_USE_LEGACY_KERAS=1)",),
    )


def failed_run() -> RunSnapshot:
    workers = [
        TaskSnapshot(
            "worker:0", "local", "127.0.0.1:40001", state="stopped", attempt=1, pid=4711,
            started_at=START + 1, ended_at=START + 64, signal=15, ended_by="tfcluster",
            step=1200, steps_per_second=41.2, peak_rss_bytes=812_000_000,
            log="logs/attempt-1/worker-0.log",
        ),
        TaskSnapshot(
            "worker:1", "local", "127.0.0.1:40002", state="failed", attempt=1, pid=4712,
            started_at=START + 1, ended_at=START + 60, exit_code=3, ended_by="itself",
            step=1190, steps_per_second=41.1, peak_rss_bytes=1_220_000_000,
            log="logs/attempt-1/worker-1.log",
        ),
    ]  # fmt: skip
    return RunSnapshot(
        run=PATHS.run_id, name="mnist-2w", status=Status.FAILED, tasks=workers,
        host="laptop", boot_id="b", pid=4700, pid_start=1, started_at=START,
        ended_at=START + 65, exit_code=1, attempt=1, spec="/home/anna/mnist/tfcluster.json",
        checkpoints=[
            {"path": "checkpoints/ckpt-12/ckpt-12", "step": 1200, "kind": "tf_checkpoint",
             "bytes": 1_234_567},
        ],
        warnings=["No task read the setting bytes_per_pack."] * 2,
        diagnosis={
            "root_cause": {"task": "worker:1", "reason": "ValueError: bad shape (train.py:12)",
                           "exit_code": 3, "hint": "look at train.py"},
            "collateral": ["worker:0"],
        },
    )  # fmt: skip


def running_run() -> RunSnapshot:
    run = failed_run()
    run.status, run.ended_at, run.exit_code, run.diagnosis, run.warnings = (
        Status.RUNNING, None, None, None, [],
    )  # fmt: skip
    for task in run.tasks:
        task.state, task.ended_at, task.exit_code, task.signal = "running", None, None, None
        task.ended_by, task.metrics = None, {"loss": 0.31415, "accuracy": 0.9}
    return run


def grid_of(run: RunSnapshot) -> Grid:
    parts = status_panel(run, PATHS, now=START + 10).parts
    return next(part for part in parts if isinstance(part, Grid))


def test_ended_tasks_show_their_mean_speed_and_running_tasks_the_current_one() -> None:
    ended, running = failed_run(), running_run()
    for task in (*ended.tasks, *running.tasks):
        task.mean_steps_per_second = 17.5
    closing = tasks_grid(ended)
    place = closing.headers.index("steps/s")
    assert [row[place] for row in closing.rows] == ["17.5", "17.5"]
    grid = grid_of(running)
    place = grid.headers.index("steps/s")
    assert [row[place] for row in grid.rows] == ["41.2", "41.1"]


def test_the_gpus_that_tensorflow_registers_are_a_column_where_there_are_any() -> None:
    run = running_run()
    for devices, shown in ((["CPU"], None), (["CPU", "GPU H200", "GPU H200"], "2 × H200")):
        run.tasks[0].devices = devices
        grid = grid_of(run)
        assert ("GPUs" in grid.headers) == (shown is not None)
        assert shown is None or grid.rows[0][grid.headers.index("GPUs")] == shown


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ([Failure("worker:0", 127, None)], None),
        ([Failure(f"worker:{number}", 3, None) for number in (0, 1)],
         "exit code 3\nthe same on worker:1"),
        ([Failure("worker:0", 1, None, last_lines="Address already in use")], None),
        ([Failure("worker:0", None, 9)], "killed by SIGKILL"),
    ],
)  # fmt: skip
def test_a_reason_that_is_only_the_exit_code_is_not_said_twice(
    failures: list[Failure], reason: str | None
) -> None:
    found = diagnosis(failures, plan())
    assert found is not None
    panel = root_cause_panel(replace(failed_run(), diagnosis=found.facts()), PATHS)
    assert panel is not None
    assert panel.title.startswith("root cause: worker:0, ")
    assert (panel.parts[0] == reason) == (reason is not None)
    assert not str(panel.parts[0]).startswith("exit code") or reason is not None


def panels() -> list[Panel]:
    cause = root_cause_panel(
        failed_run(), PATHS, ["Traceback (most recent call last):", "ValueError: bad shape"]
    )
    assert cause is not None
    return [
        start_panel(plan().at(ports=PORTS), PATHS),
        cause,
        closing_panel(
            failed_run(),
            PATHS,
            load_hint="keras.models.load_model('/home/anna/model.keras')",
            home_bytes=12_000_000_000,
        ),
        status_panel(running_run(), PATHS, now=START + 100),
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_panels_read_well_at_every_width(width: int) -> None:
    shown = "\n\n".join(plain_text(panel, width) for panel in panels()) + "\n"
    golden = GOLDEN / f"panels-{width}.txt"
    if os.environ.get("TFCLUSTER_WRITE_GOLDEN"):
        golden.write_text(shown)
    assert shown == golden.read_text()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_only_paths_are_wider_than_the_screen(width: int) -> None:
    for panel in panels():
        for line in plain_text(panel, width).splitlines():
            assert len(line) <= width or "/home/anna/" in line or line == panel.title


def test_a_screen_shows_the_same_text_under_a_rule() -> None:
    for panel in panels():
        screen = pyte.Screen(160, 40)
        pyte.ByteStream(screen).feed(
            screen_text(panel, 160, colours=True).replace("\n", "\r\n").encode()
        )
        shown = [line.rstrip() for line in screen.display if line.strip()]
        assert shown[0].rstrip("─ ") == panel.title
        assert shown[0].endswith("─")
        assert shown[1:] == plain_text(panel, 160).splitlines()[1:]


def test_no_colour_leaves_the_rule_and_drops_the_colours() -> None:
    assert "\x1b[" in screen_text(panels()[0], 80, colours=True)
    assert "\x1b[" not in screen_text(panels()[0], 80, colours=False)


def test_render_is_plain_without_a_screen(open_screen: OpenScreen) -> None:
    panel = Panel("title", (Facts((("name", "value"),)),))
    _, screen = open_screen(columns=30)
    assert render(panel, Terminal(io.StringIO(), io.StringIO())) == "title\n  name  value"
    assert render(panel, Terminal(screen, screen, environ={"NO_COLOR": "1"})).startswith("title ──")
    assert render(panel, Terminal(screen, screen, environ={"CI": "1"})) == "title\n  name  value"


def test_a_hundred_tasks_are_counted_not_listed() -> None:
    small = plan()
    many = tuple(replace(small.tasks[0], id=TaskId("worker", i)) for i in range(100))
    shown = plain_text(start_panel(replace(small, tasks=many), PATHS), 80)
    assert len(shown.splitlines()) < 25
    assert "local    100" in shown


def test_ps_lists_one_run_per_line() -> None:
    rows = part_lines(runs_grid([running_run(), running_run()], now=START + 120), 120)
    assert rows == [
        "RUN                            STATUS   TASKS   STEP    LOSS  STARTED",
        *["mnist-2w-20260914-153012-k7f3  running      2  1,200  0.3141  2 min 00 s ago"] * 2,
    ]


@pytest.mark.parametrize(
    ("width", "shown", "run"),
    [
        (200, "prepare failed on local with exit code 3; no task was started", PATHS.run_id),
        (110, "prepare failed on local with…", PATHS.run_id),
        (80, "prepare failed on lo…", PATHS.run_id),
        (60, "prepare failed on l…", "mnist-2w-202…4-153012-k7f3"),
    ],
)
def test_ps_keeps_the_reasons_of_failures_at_every_width(width: int, shown: str, run: str) -> None:
    failed = failed_run()
    failed.reason = "prepare failed on local with exit code 3; no task was started\nand more"
    grid = runs_grid([failed, running_run()], now=START + 120).fitted(width)
    assert (grid.headers[0], grid.headers[1], grid.headers[-1]) == ("RUN", "STATUS", "REASON")
    assert [row[-1] for row in grid.rows] == [shown, ""]
    assert {row[0] for row in grid.rows} == {run}, "its end names it in every command"
    assert max(map(len, part_lines(grid, width))) <= width


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_tables_stay_tables_on_a_screen_and_show_trouble_in_colour(
    open_screen: OpenScreen, columns: int
) -> None:
    _, screen = open_screen(columns=columns)
    terminal = Terminal(screen, screen, environ={})
    stalled, queued = running_run(), running_run()
    stalled.status, stalled.stall = Status.STALLED, {"what": "worker:1 is in train.py:12"}
    queued.status, queued.queue_reason = Status.QUEUED, "job 7: Priority"
    runs = stdout_text(runs_grid([failed_run(), stalled, queued], now=START + 120), terminal)
    for painted in ("\x1b[31mfailed (1)", "\x1b[33mstalled", "\x1b[33mqueued"):
        assert painted in runs
    status = stdout_text(status_panel(failed_run(), PATHS, now=START + 120), terminal)
    assert "\x1b[1;31mexit 3 (cause)" in status
    runs, status = (re.sub(r"\x1b\[[\d;]*m", "", text) for text in (runs, status))
    statuses = [row.split()[1] for row in runs.splitlines()]
    assert statuses == ["STATUS", "failed", "stalled", "queued"]
    assert "worker:1: ValueErro" in runs
    rows = status.splitlines()
    first = next(place for place, row in enumerate(rows) if row.startswith("  task "))
    assert [row.split()[0] for row in rows[first + 1 : first + 3]] == ["worker:0", "worker:1"]
    for row in (*runs.splitlines(), *rows):
        assert len(row) <= columns or "/home/anna/" in row


def test_the_root_cause_is_the_reason_if_there_is_no_other() -> None:
    (row,) = runs_grid([failed_run()], now=START + 120).rows
    assert row[-1].startswith("worker:1: ")


def test_checkpoints_without_a_step_have_a_dash() -> None:
    found = [{"path": "/x/model.keras", "step": None, "kind": "keras", "bytes": 1_500_000}]
    assert part_lines(checkpoints_grid(found), 80)[1] == "   –  keras  1.5 MB  /x/model.keras"


def test_a_checkpoint_on_a_narrow_screen_says_that_its_number_is_a_step() -> None:
    found = [{"path": "/x/model.keras", "step": 90, "kind": "keras", "bytes": 1_500_000}]
    assert part_lines(checkpoints_grid(found), 20)[0] == "STEP 90"


def test_a_table_that_is_too_wide_becomes_lists() -> None:
    grid = Grid(("task", "end"), (("worker:0", "exit 0"), ("worker:1", "SIGKILL")))
    assert part_lines(grid, 14) == ["worker:0", "  end  exit 0", "worker:1", "  end  SIGKILL"]


def test_ps_leaves_out_epoch_and_loss_where_they_make_the_table_too_wide() -> None:
    run = running_run()
    run.tasks[0].epoch, run.tasks[0].epochs = 3, 10
    wide = runs_grid([run], now=START + 120).fitted(100)
    assert wide.headers == ("RUN", "STATUS", "TASKS", "EPOCH", "STEP", "LOSS", "STARTED")
    assert wide.rows[0][3:6] == ("3/10", "1,200", "0.3141")
    assert "EPOCH" not in runs_grid([run], now=START + 120).fitted(80).headers
    assert "LOSS" not in runs_grid([run], now=START + 120).fitted(70).headers


def test_no_path_and_no_command_is_broken_at_a_space() -> None:
    paths = RunPaths(Path("/home/anna/my runs/mnist-2w-20260914-153012-k7f3"))
    python = replace(PYTHON, path="/home/anna/my env/bin/python")
    spaced = replace(
        plan(),
        nodes=(NodePlan("local", "local", python, "/home/anna/my code"),),
        notes=(LONG_NOTE,),
    )
    panels = [
        start_panel(spaced, paths),
        closing_panel(
            failed_run(), paths, load_hint="keras.models.load_model('/home/a b/m.keras')"
        ),
        status_panel(running_run(), paths, now=START, has_curves=True),
    ]
    shown = "\n".join(plain_text(panel, 40) for panel in panels)
    lines = [*shown.splitlines(), *format_plan(spaced, [], width=40)]
    for whole in (
        *(str(paths.root), str(paths.attempt_logs(1)), "/home/anna/my env/bin/python"),
        *("/home/anna/my code", "tfcluster tensorboard k7f3", "--set checkpoints.keep=9"),
        *("keras.models.load_model('/home/a b/m.keras')", "`tfcluster checkpoints k7f3 --copy x`"),
    ):
        assert any(whole in line for line in lines), whole


def test_a_run_that_broke_off_names_the_command_that_continues_it() -> None:
    def command(run: RunSnapshot) -> bool:
        shown = closing_panel(run, PATHS)
        return "  tfcluster restart k7f3" in plain_text(shown, 80)

    run = failed_run()
    assert command(run)
    assert not command(replace(run, can_restart=False))
    without = replace(run, checkpoints=[])
    assert not command(without), "a restart would begin anew"
    assert command(replace(without, shares_checkpoints=True)), "a restart looks in its folder"
    run.status = Status.SUCCEEDED
    assert not command(run)


def test_the_closing_panel_has_results_and_the_command_for_curves() -> None:
    run = failed_run()
    lead = run.tasks[0]
    lead.metrics, lead.first_step_s = {"accuracy": 0.9, "loss": 0.25, "val_loss": 0.3}, 6.2
    lead.epoch, lead.epochs, lead.total_steps = 3, 10, 4000
    lead.mean_examples_per_second, lead.mean_steps_per_second = 1318.0, 20.6
    shown = plain_text(closing_panel(run, PATHS, has_curves=True), 80)
    facts = {line.split("  ")[1].strip(): line for line in shown.splitlines() if "  " in line}
    assert facts["metrics"].endswith("loss 0.25, accuracy 0.9, val_loss 0.3")
    assert facts["speed"].endswith("1,318 examples/s on average, first step after 6.2 s")
    assert facts["progress"].endswith("epoch 3/10, step 1,200 of 4,000")
    assert facts["curves"].endswith("tfcluster tensorboard k7f3")
    without = plain_text(closing_panel(run, PATHS, home_bytes=9_000_000_000), 80)
    assert "curves" not in without
    assert "prune" not in without, "it is named above ten gigabytes"


def test_the_line_about_ports_names_those_that_other_machines_can_reach() -> None:
    assert describe_ports(plan(), [0, 0]).startswith("2 ports, chosen at start: TensorFlow listens")
    assert describe_ports(plan(), [2223, 2222]).startswith(
        "2222, 2223: TensorFlow listens on every"
    )
    assert describe_ports(plan(), range(3000, 3100)).startswith("100 ports, 3000 to 3099: ")
    private = replace(plan(), nodes=tuple(replace(n, network="private") for n in plan().nodes))
    assert describe_ports(private, [2222, 2223]).startswith("none: ")
