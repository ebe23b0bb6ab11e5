"""Sentences about a run: attempts, restarts, stacks, checkpoints, faults, diagnosis.

All functions are pure: they read the run's state (`RunSnapshot`) or one event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tfcluster.errors import join_first
from tfcluster.rundir.figures import moves
from tfcluster.rundir.goodput import Goodput, Part
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui import pages
from tfcluster.ui.formats import format_bytes, format_duration, plural
from tfcluster.ui.lines import sanitize_text
from tfcluster.ui.render import Facts

_FROM_THE_BEGINNING = "from the beginning: no checkpoint in $TFCLUSTER_CHECKPOINT_DIR"
_RESTARTS_LISTED = 10
_PACKAGES: Final = re.compile(r".*/(?:(?:site|dist)-packages|bundles/[0-9a-f]+/workers)/")
"""The folders before a package of Python, or before `tfcluster_workers` on a task's node."""
_LOST: Final = (
    ("in the queue", (Part.QUEUE,)),
    ("start", (Part.START,)),
    ("restarts", (Part.RESTART, Part.RESTORE, Part.REPEATED)),
    ("stalled", (Part.STALLED,)),
    ("suspended", (Part.SUSPENDED,)),
    ("after the last step", (Part.OTHER,)),
    ("gathering", (Part.GATHERING,)),
)
"""Words for the parts of a run's time that are not steps that count."""
_COSTS: Final = (
    (Part.RESTART, "until the processes ran"),
    (Part.RESTORE, "to the first step"),
    (Part.REPEATED, "of steps done again"),
)
_FAILURE_STATES = (Status.RESTARTING, Status.FAILED, Status.TIMED_OUT, Status.LOST)


def attempt_of_all(snapshot: RunSnapshot) -> int:
    """Return how often all tasks were started together.

    Restarts of a single task do not count: such a task has its own attempt number.
    """
    together = [event["attempt"] for event in snapshot.restarts if not event.get("task")]
    continued = (snapshot.continued or {}).get("attempt", 1)
    return max(int(together[-1]) if together else 1, int(continued))


def format_attempt(snapshot: RunSnapshot) -> str:
    """Return ``2 of 4``, or ``2`` where the limit may have changed; empty for the first."""
    attempt = attempt_of_all(snapshot)
    last = snapshot.restarts[-1] if snapshot.restarts else {}
    has_limit = "of" in last and (last.get("task") is not None or last["attempt"] == attempt)
    limit = f" of {last['of']}" if has_limit else ""
    return f"{attempt}{limit}" if attempt > 1 else ""


def format_attached(snapshot: RunSnapshot) -> str:
    """Return the first line of `attach`: the run, its status, attempt, step and tasks."""
    parts = [f"{snapshot.run} is {snapshot.status}"]
    if (attempt := attempt_of_all(snapshot)) > 1:
        parts.append(f"attempt {attempt}")
    if (leader := snapshot.leader) is not None:
        parts.append(f"step {leader.step:,}")
    parts.append(plural(len(snapshot.tasks), "task"))
    return f"{', '.join(parts)}; Ctrl-C detaches, the run continues"


def format_restart(event: Mapping[str, Any]) -> str:
    """Return ``attempt 2 of 4, from step 1,200, in 2.0 s: worker:1: killed by SIGKILL``."""
    task, members = event.get("task"), event.get("members")
    text = f"attempt {event['attempt']} of {event['of']}"
    if task is not None:
        text = f"{task} alone: {text}"
    if members is not None:
        text += f", with {plural(len(members), 'remaining task')}"
    start = _format_position(event.get("from_step"), event.get("from_checkpoint"))
    if start:
        text += f", from {start}"
    if delay_s := event.get("delay_s"):
        text += f", in {format_duration(delay_s)}"
    text += f": {_first_reason_line(event)}"
    return text if start or task is not None else f"{text}; {_FROM_THE_BEGINNING}"


def format_resume(run: str, step: int | None, checkpoint: str | None = None) -> str:
    """Return ``RUN at step 1,200``, or ``RUN at ckpt-12`` if the step is not known."""
    start = _format_position(step, checkpoint)
    return f"{run} at {start}" if start else run


def format_checkpoint(checkpoint: Mapping[str, Any], label: str = "step ") -> str:
    """Return ``step 1,200``, else ``save 12``, else an empty string."""
    save = checkpoint.get("save")
    name = None if save is None else f"save {save}"
    return _format_position(checkpoint.get("step"), name, label)


def format_evaluation(checkpoint: Mapping[str, Any]) -> str:
    """Return ``accuracy 0.9875``, with ``(best)`` for the best one, or an empty string."""
    return f"{checkpoint.get('evaluated') or ''}{' (best)' * bool(checkpoint.get('is_best'))}"


def _format_position(step: int | None, name: str | None, label: str = "step ") -> str:
    return name or "" if step is None else f"{label}{step:,}"


def list_facts(snapshot: RunSnapshot, *, has_timeline: bool = False) -> tuple[tuple[str, str], ...]:
    """Return name and value of what not every run has: its resume, restarts, faults, goodput.

    With `has_timeline`, without those that a page with a timeline shows in its own way.
    """
    source = snapshot.resumed_from or {}
    resume = format_resume(str(source.get("run")), source.get("step"), source.get("checkpoint"))
    by_hand = (f"{task} at {address}" for task, address in snapshot.by_hand.items())
    return Facts.of(
        ("resumed", resume if source else None),
        ("by hand", ", ".join(by_hand)),
        ("attempt", "" if has_timeline else format_attempt(snapshot)),
        ("restarts", "" if has_timeline else _list_restarts(snapshot.restarts)),
        ("injected", "\n".join(map(_format_fault, snapshot.chaos))),
        ("lost", format_unsaved(snapshot)),
        ("goodput", "" if has_timeline else format_goodput(snapshot.goodput)),
    ).pairs


def format_goodput(goodput: Goodput | None) -> str:
    """Return ``83.2%: start 12 s, restarts 28 s``, and what a restart cost; empty before a step."""
    if goodput is None or (share := goodput.share) is None:
        return ""
    seconds = goodput.seconds
    total = sum(seconds.values())
    groups = ((words, sum(seconds.get(part, 0.0) for part in parts)) for words, parts in _LOST)
    lost = ", ".join(f"{w} {format_duration(s)}" for w, s in groups if s >= total / 1000)
    head = f"{share:.1%}{': ' if lost else ''}{lost}"
    return "\n".join(filter(None, [head, _format_restart_cost(goodput)]))


def _format_restart_cost(goodput: Goodput) -> str:
    cost = goodput.restart_cost
    parts = ", ".join(f"{format_duration(cost[p])} {words}" for p, words in _COSTS if p in cost)
    if not parts:
        return ""
    steps = plural(goodput.lost_steps, "step") if goodput.lost_steps else "no step"
    lost = f"; {steps} lost" if goodput.has_resumed else ""
    return f"a restart cost {format_duration(sum(cost.values()))} on average: {parts}{lost}"


def format_unsaved(snapshot: RunSnapshot) -> str:
    """Return how many steps a run that was stopped has taken since its newest checkpoint.

    Empty where that is not known: not every checkpoint has a step.
    """
    goodput = snapshot.goodput
    if snapshot.status is not Status.INTERRUPTED or goodput is None or goodput.step is None:
        return ""
    begin = (snapshot.resumed_from or {"step": 0}).get("step")
    saved = [begin, *(record.get("step") for record in snapshot.checkpoints)]
    known = [step for step in saved if step is not None]
    if len(known) < len(saved) or snapshot.missed:
        return ""
    if (steps := goodput.step - max(known)) <= 0:
        return "no step"
    where = "since the newest checkpoint"
    if not snapshot.checkpoints:
        where = "unless they are saved elsewhere: no checkpoint was gathered"
    return f"{plural(steps, 'step')} {where}"


def format_stall(stall: Mapping[str, Any] | None, now: float | None) -> str:
    """Return ``no step for 50 s: worker:1 is in train.py:12 `time.sleep`; …``; empty without one.

    `now`: seconds since 1970; None leaves the time out.
    """
    if not stall:
        return ""
    since = f" for {format_duration(now - (stall.get('since') or now))}" if now is not None else ""
    return ": ".join(filter(None, [f"no step{since}", stall.get("what")]))


def format_traced(event: Mapping[str, Any]) -> str:
    """Return ``steps 121 to 130 of worker:0, worker:1`` for an event `profile_started`."""
    tasks, steps, after = join_first(event["tasks"]), event["steps"], event.get("after")
    if after is None:
        return f"{plural(steps, 'step')} of {tasks}"
    which = f"step {after + 1}" if steps == 1 else f"steps {after + 1} to {after + steps}"
    return f"{which} of {tasks}"


def format_stacks(answer: Mapping[str, Any], *, all_threads: bool = False) -> list[str]:
    """Return the lines for an answer of `Run.stacks`: who is waited for, then each task's stack."""
    lines = [str(answer["what"])] if answer.get("what") else []
    for task in answer["tasks"]:
        lines += ["", f"{task['task']} {task['where']}"]
        threads = task["threads"]
        for number, frames in enumerate(threads if all_threads else threads[:1]):
            name = "main thread" if number == 0 else f"thread {number + 1}"
            lines.append(f"  {name}, innermost first:")
            lines += _format_frames(frames)
        if (more := len(threads) - 1) > 0 and not all_threads:
            lines.append(f"  {plural(more, 'more thread')}: --all-threads shows them")
    return [sanitize_text(line) for line in lines]


def _format_frames(frames: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for frame in frames:
        file = _PACKAGES.sub("…/", str(frame["file"]))
        code = f"  {frame['code']}" if frame.get("code") else ""
        yield f"    {file}:{frame['line']} in {frame['function']}{code}"


def format_gathering(progress: Mapping[str, Any] | None) -> str:
    """Return ``checkpoints from 10.0.0.1, 1.2 GB of 3.0 GB``; empty if nothing is gathered."""
    if not progress:
        return ""
    node = f" from {progress['node']}" if progress.get("node") else ""
    text = f"{progress.get('what', 'files')}{node}"
    if progress.get("of"):
        text += f", {format_bytes(progress.get('bytes') or 0)} of {format_bytes(progress['of'])}"
    return text


def root_cause(snapshot: RunSnapshot) -> Mapping[str, Any] | None:
    """Return why the run failed or is restarting; None once it has recovered from the failure."""
    if snapshot.status not in _FAILURE_STATES or snapshot.diagnosis is None:
        return None
    is_planned = bool(snapshot.restarts) and snapshot.restarts[-1].get("planned") is True
    if is_planned and snapshot.status is Status.RESTARTING:
        return None
    cause: Mapping[str, Any] | None = snapshot.diagnosis.get("root_cause")
    return cause


def collateral(snapshot: RunSnapshot) -> Sequence[str]:
    """Return the tasks that failed because of the root cause."""
    tasks: Sequence[str] = (snapshot.diagnosis or {}).get("collateral") or ()
    return tasks if root_cause(snapshot) else ()


def format_blame(snapshot: RunSnapshot, task: TaskSnapshot) -> str:
    """Return " (cause)", " (same error)" or " (collateral)" for a failed task, else ""."""
    cause = root_cause(snapshot)
    if cause is not None and task.task in (cause.get("also") or ()):
        return " (same error)"
    if cause is None or task.state != "failed" or task.ended_by == "tfcluster":
        return ""
    if cause.get("task") == task.task and cause.get("attempt", task.attempt) == task.attempt:
        return " (cause)"
    return " (collateral)" if task.task in collateral(snapshot) else ""


def log_of_cause(snapshot: RunSnapshot) -> str | None:
    """Return the root cause's log of the attempt that failed, relative to the run folder."""
    cause = root_cause(snapshot) or {}
    log = next((task.log for task in snapshot.tasks if task.task == cause.get("task")), None)
    if log is None or "attempt" not in cause:
        return log
    return re.sub(r"attempt-\d+", f"attempt-{cause['attempt']}", log, count=1)


def format_reason(snapshot: RunSnapshot) -> list[str]:
    """Return why the run ended, as paragraphs; empty if only a task's own failure ended it."""
    if not snapshot.reason:
        return []
    return [f"reason: {snapshot.reason}", *([f"→ {snapshot.hint}"] if snapshot.hint else [])]


def format_short_reason(snapshot: RunSnapshot, now: float | None = None) -> str:
    """Return why a run is queued, stalled or has not succeeded in one line; empty if unknown."""
    reason = snapshot.reason or format_stall(snapshot.stall, now)
    if snapshot.status is Status.QUEUED:
        reason = snapshot.queue_reason or snapshot.waits_for or ""
    if not reason and (root := root_cause(snapshot)):
        reason = f"{root.get('task')}: {root.get('reason', '')}"
    if not reason:
        reason = next(iter(snapshot.alerts.values()), "")
    if not reason:
        reason = (slowing_verdict(snapshot) or {}).get("message", "")
    return reason.partition("\n")[0]


def slowing_verdict(snapshot: RunSnapshot) -> Mapping[str, Any] | None:
    """Return the verdict if it names what makes the steps slow, and steps are taken, else None."""
    verdict = snapshot.step_verdict
    is_slow = verdict is not None and is_slowing(verdict)
    return verdict if is_slow and moves(snapshot) else None


def is_slowing(verdict: Mapping[str, Any]) -> bool:
    """Return whether a verdict, or the event of one, names something that makes steps slow."""
    return verdict.get("bound") not in (None, "compute")


def format_cause(snapshot: RunSnapshot) -> list[str]:
    """Return the diagnosis as paragraphs; empty without one."""
    cause = root_cause(snapshot)
    if not cause:
        return []
    lines = [f"root cause: {cause.get('task')}: {cause.get('reason', '')}", *format_fix(cause)]
    return [*lines, *format_consequences(snapshot)]


def format_consequences(snapshot: RunSnapshot) -> list[str]:
    """Return which tasks failed because of the root cause, and why the run was not restarted."""
    others, not_restarted = collateral(snapshot), (root_cause(snapshot) or {}).get("not_restarted")
    lines = [f"{', '.join(others)} failed because of it."] if others else []
    return lines + (
        [f"Not restarted: {not_restarted}."] if not_restarted and snapshot.status.is_final else []
    )


def format_fix(root_cause: Mapping[str, Any]) -> list[str]:
    """Return the fix, and where it is explained."""
    docs = root_cause.get("docs")
    where = f" ({pages.reference(str(docs))})" if docs else ""
    return [f"→ {root_cause['hint']}{where}"] if root_cause.get("hint") else []


def _list_restarts(events: Sequence[Mapping[str, Any]]) -> str:
    earlier = len(events) - _RESTARTS_LISTED
    head = [f"… {plural(earlier, 'earlier restart')}"] if earlier > 0 else []
    shown = (
        f"{_format_attempt(event)}: {_first_reason_line(event)}"
        for event in events[-_RESTARTS_LISTED:]
    )
    return "\n".join([*head, *shown])


def _format_attempt(event: Mapping[str, Any]) -> str:
    task = f"{event['task']} " if event.get("task") else ""
    start = _format_position(event.get("from_step"), event.get("from_checkpoint"))
    return f"{task}attempt {event['attempt']}{' from ' if start else ''}{start}"


def _first_reason_line(event: Mapping[str, Any]) -> str:
    return str(event.get("reason", "")).partition("\n")[0]


def _format_fault(record: Mapping[str, Any]) -> str:
    """Return ``kill worker:1 at step 50: detected after 0.1 s, resumed after 2.3 s at step 41``."""
    detected, resumed = record.get("detected_after_s"), record.get("resumed_after_s")
    detection = "never detected" if detected is None else f"detected after {_format_s(detected)}"
    if resumed is None:
        return f"{record['fault']}: {detection}, not resumed"
    step = record.get("resumed_step")
    at = f" at step {step:,}" if step is not None else ""
    return f"{record['fault']}: {detection}, resumed after {_format_s(resumed)}{at}"


def _format_s(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.095 else format_duration(seconds)
