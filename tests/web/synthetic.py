"""Run folders as the coordinator leaves them, made by its own writer with a clock of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.launcher.conftest import plan_of

from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.events import Event
from tfcluster.rundir.fold import first_state
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.typed_json import to_json

EPOCH_STEPS = 40
PID = 4711


@dataclass(slots=True)
class SyntheticRun:
    """A run that is being written; `at` is the time of its next event."""

    paths: RunPaths
    writer: RunWriter
    tasks: Sequence[str]
    at: float
    attempt: int = 1

    def record(self, event: Event, *, after_s: float = 0.0) -> None:
        self.at += after_s
        self.writer.record(event)

    def start(self) -> None:
        for number, task in enumerate(self.tasks):
            self.record(
                ev.TaskStarted(task=task, attempt=self.attempt, node="local", pid=PID + number),
                after_s=0.02,
            )
            self.log(task, f"started attempt {self.attempt}\n".encode())

    def train(
        self,
        first: int,
        last: int,
        *,
        total: int | None = None,
        step_s: float = 0.1,
        loss: Callable[[int], float] = lambda step: 2.2 * math.exp(-step / 90) + 0.08,
    ) -> None:
        """Report every second step of each task, with memory, and lines in the logs."""
        for step in range(first, last + 1, 2):
            self.at += 2 * step_s
            for place, task in enumerate(self.tasks):
                value = loss(step) * (1 + place / 1e4)
                self.record(self._progress(task, step, total, step_s, value))
            if step % 10 == 0:
                used = {"rss_bytes": 410_000_000 + 100_000 * step, "cores": 1.4}
                self.record(ev.Usage(node="local", tasks=dict.fromkeys(self.tasks, used)))
            if step % 10 == 0:
                self.take_steps(step, 10, step_s)

    def take_steps(self, step: int, steps: int, step_s: float) -> None:
        """Report what the last `steps` were spent on; all tasks wait for the last one's input."""
        for task in self.tasks:
            is_last = task == self.tasks[-1]
            input_s, waiting_s = (0.4, 0.01) if is_last else (0.05, 0.36)
            shares = {"input": input_s, "compute": 0.35 + step % 3 / 20, "waiting": waiting_s}
            shares |= {"transfer": 0.12, "callbacks": 0.03, "other": 0.01}
            seconds = step_s * steps / sum(shares.values())
            parts = {name: share * seconds for name, share in shares.items()}
            about = {"task": task, "attempt": self.attempt, "step": step, "steps": steps}
            self.record(ev.StepTimes(**about, seconds=step_s * steps, parts=parts))  # type: ignore[arg-type]

    def judge(self) -> None:
        """Give the verdict on what `take_steps` reports."""
        last = self.tasks[-1]
        message = f"input-bound: {last} waits 42% of a step (42 ms of 100 ms) for its next batch"
        verdict = ev.StepVerdict(
            attempt=self.attempt,
            bound="input",
            causes=(last,),
            message=message,
            fix="dataset.cache(), prefetch(tf.data.AUTOTUNE)",
        )
        self.record(verdict)

    def _progress(
        self, task: str, step: int, total: int | None, step_s: float, loss: float
    ) -> ev.Progress:
        metrics = {"loss": loss, "accuracy": 1 - math.exp(-step / 60) * 0.9}
        if step % EPOCH_STEPS == 0:
            metrics |= {"val_loss": loss * 1.15, "val_accuracy": metrics["accuracy"] * 0.97}
        return ev.Progress(
            task=task,
            attempt=self.attempt,
            step=step,
            epoch=1 + (step - 1) // EPOCH_STEPS,
            epochs=None if total is None else total // EPOCH_STEPS,
            steps_per_epoch=EPOCH_STEPS,
            total_steps=total,
            metrics=metrics,
            steps_per_second=1 / step_s + step % 3,
            mean_steps_per_second=1 / step_s,
            examples_per_second=64 / step_s + 5 * (step % 7),
            mean_examples_per_second=64 / step_s + 5 * (step % 7),
        )

    def log(self, task: str, lines: bytes) -> None:
        path = self.paths.task_log(TaskId.parse(task), self.attempt)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(lines)

    def restart(self, reason: str, *, from_step: int) -> None:
        self.attempt += 1
        again = ev.Restarting(reason=reason, attempt=self.attempt, of=4, from_step=from_step)
        self.record(again, after_s=0.5)
        self.start()

    def gather(self, step: int) -> None:
        path = f"checkpoints/ckpt-{step}"
        self.record(ev.CheckpointGathered(path=path, step=step, kind="tf"))
        self.writer.state.checkpoints.append({"path": path, "step": step})

    def fail(self, text: str = "ValueError: bad batch") -> None:
        """End the run: `text` is the error of the last task and the root cause."""
        culprit = self.tasks[-1]
        error = {"exception": "ValueError", "message": text, "file": text}
        self.record(ev.TaskError(task=culprit, attempt=self.attempt, **error))  # type: ignore[arg-type]
        for task in self.tasks:
            ended: dict[str, object] = (
                {"exit_code": 1}
                if task == culprit
                else {"exit_code": None, "signal": 15, "ended_by": "tfcluster"}
            )
            self.record(ev.TaskExited(task=task, attempt=self.attempt, **ended))  # type: ignore[arg-type]
        cause = {"task": culprit, "attempt": self.attempt, "exit_code": 1, "reason": text}
        cause |= {"hint": "fix the batch", "docs": "javascript:window.hit=1"}
        others = tuple(task for task in self.tasks if task != culprit)
        self.record(ev.Diagnosis(root_cause=cause, collateral=others, attempt=self.attempt))
        self.record(ev.RunFinished(status="failed", exit_code=1))
        self.writer.close()

    def end(self, status: str = "succeeded", exit_code: int = 0, reason: str | None = None) -> None:
        for task in self.tasks:
            ended = ev.TaskExited(
                task=task, attempt=self.attempt, exit_code=exit_code, peak_rss_bytes=520_000_000
            )
            self.record(ended, after_s=0.02)
        last = ev.RunFinished(status=status, exit_code=exit_code, reason=reason)
        self.record(last, after_s=0.2)
        self.writer.close()


def new_run(
    home: Path,
    name: str,
    *,
    started: float,
    tasks: Sequence[str] = ("worker:0", "worker:1"),
    plan: Plan | None = None,
    spec: Mapping[str, Any] | None = None,
) -> SyntheticRun:
    """Make the folder of a run whose coordinator is this process, so that it may be live."""
    paths = run_writer.make(registry.new_run_id(slug(name), started), home)
    plan = plan or plan_of(*tasks, name=name)
    run_writer.require_json(paths.spec, spec or {"job": {"script": "main.py"}})
    run_writer.require_json(paths.plan, to_json(plan))
    state = first_state(plan, paths, registry.this_process(), started)
    run = SyntheticRun(paths, None, tasks, started)  # type: ignore[arg-type]
    run.writer = RunWriter(state, paths, clock=lambda: run.at)
    run.record(ev.RunStarted(version="0", run=paths.run_id))
    return run


def slug(name: str) -> str:
    """Return the part of a run's id that its name gives."""
    return "".join(c if c.isalnum() else "-" for c in name.lower())[:20] or "run"


def write_restarted(home: Path, name: str, *, started: float) -> RunPaths:
    """Write a run with a NaN, a restart, checkpoints and a warning; it succeeded."""
    run = new_run(home, name, started=started)
    run.start()
    run.train(2, 80, total=240)
    run.gather(80)
    run.train(82, 90, total=240, loss=lambda step: math.nan)
    run.train(92, 130, total=240)
    run.record(ev.Warned(message="worker:1 is 20 % slower than worker:0"))
    run.judge()
    run.restart("worker:1: killed by SIGKILL", from_step=80)
    run.train(82, 240, total=240)
    run.judge()
    run.gather(240)
    run.end()
    return run.paths


def write_many(home: Path, count: int, *, now: float) -> None:
    """Write `count` ended runs, one every ten minutes before `now`."""
    for number in range(count):
        spec = {"job": {"script": "main.py", "args": ["--seed", str(number)]}}
        run = new_run(home, f"sweep-{number:03d}", started=now - 600 * (number + 1), spec=spec)
        run.start()
        loss = 2 / (1 + number % 17)
        run.train(38, 40 + 2 * (number % 5), total=80, loss=lambda step, loss=loss: loss)  # type: ignore[misc]
        if number % 7 == 3:
            run.end("failed", 1, reason="worker:1: ValueError: bad learning rate")
        else:
            run.end()


def write_wide(home: Path, name: str, *, started: float, tasks: int = 64) -> RunPaths:
    """Write a live run of many tasks."""
    run = new_run(home, name, started=started, tasks=[f"worker:{n}" for n in range(tasks)])
    run.start()
    run.train(2, 40, total=400)
    run.judge()
    run.writer.close()
    return run.paths
