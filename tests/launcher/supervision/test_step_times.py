"""What the time of steps goes into, and the verdicts: constructed reports with a known truth."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.rundir import events as ev
from tfcluster.supervision.step_times import SURE_S, Bound, Link, StepTimes


@dataclass
class Worker:
    """The constructed time of a task's own work in each step."""

    input: float = 0.0
    compute: float = 0.05
    callbacks: float = 0.0
    other: float = 0.0

    @property
    def own(self) -> float:
        return self.input + self.compute + self.callbacks + self.other


@dataclass
class Gang:
    """Tasks that train together: each step ends for all when the last one has been summed."""

    workers: dict[str, Worker]
    transfer: float = 0.005
    reduced_bytes: int = 1_000_000
    times: StepTimes = field(default_factory=StepTimes)
    step: dict[str, int] = field(default_factory=dict)
    events: list[ev.Event] = field(default_factory=list)

    def report(self, task: str, steps: int, *, stride: int = 1) -> None:
        worker, first = self.workers[task], self.step.get(task, 1)
        self.step[task] = first + steps
        whole = max(each.own for each in self.workers.values()) + self.transfer
        count = steps // stride
        report = msg.StepParts(
            task=task,
            attempt=1,
            after=first,
            steps=[*range(first + stride, first + steps + 1, stride)],
            seconds=[whole * stride] * count,
            input_s=[worker.input * stride] * count,
            compute_s=[worker.compute * stride] * count,
            collective_s=[(whole - worker.own) * stride] * count,
            callbacks_s=[worker.callbacks * stride] * count,
            reduced_bytes=self.reduced_bytes * steps,
        )
        self.events += self.times.note(report, list(self.workers))

    def train(self, reports: int = 6, steps: int = 60) -> ev.StepVerdict | None:
        for _ in range(reports):
            for task in self.workers:
                self.report(task, steps)
        verdicts = [event for event in self.events if isinstance(event, ev.StepVerdict)]
        return verdicts[-1] if verdicts else None

    def parts(self, task: str) -> dict[str, float]:
        """The newest shares of a task's step."""
        found = [e for e in self.events if isinstance(e, ev.StepTimes) and e.task == task]
        return {name: value / found[-1].seconds for name, value in found[-1].parts.items()}


def gang(*workers: Worker, **options: float) -> Gang:
    return Gang({f"worker:{i}": worker for i, worker in enumerate(workers)}, **options)  # type: ignore[arg-type]


def test_the_last_to_arrive_waits_for_the_transfer_only() -> None:
    run = gang(Worker(compute=0.05), Worker(compute=0.06), transfer=0.04)
    run.train(reports=1)
    fast, slow = run.parts("worker:0"), run.parts("worker:1")
    assert fast["waiting"] == pytest.approx(0.1, abs=1e-3)
    assert slow["waiting"] == 0
    assert fast["transfer"] == slow["transfer"] == pytest.approx(0.4, abs=1e-3)
    assert sum(fast.values()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("workers", "transfer", "bound", "tasks", "said"),
    [
        ([Worker(input=0.1)] * 3, 0.005, Bound.INPUT, (), "the slowest task waits 65%"),
        ([Worker(), Worker(input=0.1)], 0.005, Bound.INPUT, ("worker:1",), "worker:1 waits"),
        ([Worker()] * 2, 0.078, Bound.NETWORK, (), "1 MB a step at 0.013 GB/s"),
        ([Worker()] * 2 + [Worker(compute=0.15)], 0.005, Bound.STRAGGLER, ("worker:2",), "3.0 t"),
        ([Worker(callbacks=0.1)] * 2, 0.005, Bound.PYTHON, (), "callbacks take 65% of a step"),
        ([Worker(), Worker(other=0.1)], 0.005, Bound.PYTHON, ("worker:1",), "outside of functions"),
        ([Worker(compute=0.2)] * 2, 0.005, Bound.COMPUTE, (), "computing takes 98%"),
        ([Worker(compute=0.2)], 0.0, Bound.COMPUTE, (), "computing takes 100%"),
    ],
)  # fmt: skip
def test_each_bound_is_named_with_its_tasks(
    workers: list[Worker], transfer: float, bound: Bound, tasks: tuple[str, ...], said: str
) -> None:
    verdict = gang(*workers, transfer=transfer).train()
    assert verdict is not None
    assert (verdict.bound, verdict.causes) == (bound, tasks)
    assert said in (verdict.message or "")


def test_a_step_without_a_dominant_part_has_no_verdict() -> None:
    assert gang(*[Worker(input=0.01, compute=0.05, other=0.02)] * 2, transfer=0.02).train() is None


def test_a_verdict_needs_time_and_is_taken_back() -> None:
    run = gang(Worker(input=0.1), Worker())
    assert 30 * (run.workers["worker:0"].own + run.transfer) < SURE_S
    assert run.train(reports=1, steps=30) is None
    given = run.train(reports=1, steps=30)
    assert given is not None
    assert given.bound == Bound.INPUT
    run.workers = {task: Worker(input=0.01, other=0.02) for task in run.workers}
    run.transfer = 0.02
    taken_back = run.train(reports=4)
    assert taken_back is not None
    assert taken_back.bound is None


def test_tasks_that_take_turns_in_being_last_are_not_named() -> None:
    run = gang(Worker(input=0.1), Worker())
    for turn in range(6):
        slow, fast = (Worker(input=0.1), Worker())[:: 1 if turn % 2 else -1]
        run.workers = {"worker:0": slow, "worker:1": fast}
        verdict = run.train(reports=1)
    assert verdict is not None
    assert (verdict.bound, verdict.causes) == (Bound.INPUT, ())


def test_a_task_that_becomes_the_slowest_is_named_though_it_was_not_the_first() -> None:
    run = gang(Worker(input=0.1), Worker())
    run.train(reports=1)
    run.workers = {"worker:0": Worker(), "worker:1": Worker(input=0.1)}
    verdict = run.train(reports=1)
    assert verdict is not None
    assert (verdict.bound, verdict.causes) == (Bound.INPUT, ())
    verdict = run.train(reports=4)
    assert verdict is not None
    assert (verdict.bound, verdict.causes) == (Bound.INPUT, ("worker:1",))


def test_one_slow_callback_at_the_end_of_an_epoch_is_no_verdict() -> None:
    run = gang(*[Worker(input=0.01, compute=0.05, other=0.02)] * 2, transfer=0.02)
    run.train(reports=2)
    run.workers = {task: Worker(callbacks=0.5) for task in run.workers}
    assert SURE_S < 60 * 0.5
    assert run.train(reports=1) is None


def test_a_verdict_with_which_no_window_agrees_any_more_is_taken_back() -> None:
    run = gang(Worker(input=0.1), Worker(input=0.1))
    run.train(reports=2)
    for turn in range(8):  # never the same long enough for another verdict
        parts = {"other": 0.1} if turn % 2 else {"compute": 0.2}
        run.workers = {task: Worker(**parts) for task in run.workers}
        verdict = run.train(reports=1, steps=30)
    assert verdict is not None
    assert verdict.bound is None


def test_reports_without_any_time_give_no_verdict() -> None:
    times, none = StepTimes(), [0.0]
    for task, collective_s in (("worker:0", 0.0), ("worker:1", 9.0)):
        report = msg.StepParts(
            task=task, attempt=1, after=1, steps=[9], seconds=none, input_s=none, compute_s=none,
            collective_s=[collective_s], callbacks_s=none,
        )  # fmt: skip
        events = list(times.note(report, ["worker:0", "worker:1"]))
    assert not any(isinstance(event, ev.StepVerdict) for event in events)
    assert len(events) == 2


def test_entries_of_different_lengths_and_lost_reports_meet_at_common_steps() -> None:
    run = gang(Worker(input=0.02), Worker(compute=0.06))
    run.report("worker:0", 64, stride=2)
    run.report("worker:1", 64, stride=8)
    run.step["worker:0"] += 64  # a report that the socket had no room for
    run.report("worker:1", 64, stride=8)
    assert {e.step for e in run.events if isinstance(e, ev.StepTimes)} == {65}
    run.report("worker:0", 64, stride=2)
    run.report("worker:1", 64, stride=8)
    found = [e for e in run.events if isinstance(e, ev.StepTimes)]
    assert {(e.step, e.steps) for e in found} == {(65, 64), (193, 64)}
    assert run.parts("worker:0")["input"] == pytest.approx(0.02 / 0.075, abs=1e-3)


def test_a_task_that_reports_nothing_leaves_the_others_without_a_verdict() -> None:
    run = gang(Worker(input=0.1), Worker())
    for _ in range(20):
        run.report("worker:0", 100)
    assert run.events == []


def test_a_report_with_lists_of_different_lengths_is_left_out() -> None:
    report = msg.StepParts(
        task="worker:0", attempt=1, after=1, steps=[2, 3], seconds=[1.0], input_s=[], compute_s=[],
        collective_s=[], callbacks_s=[],
    )  # fmt: skip
    assert list(StepTimes().note(report, ["worker:0"])) == []


def test_the_speed_of_the_network_is_compared_with_the_known_one() -> None:
    run = gang(Worker(), Worker(), transfer=0.078)
    run.times.link = Link(0.02, "the simulated network has")
    verdict = run.train()
    assert verdict is not None
    assert "0.013 GB/s of the 0.02 GB/s that the simulated network has" in (verdict.message or "")


def test_others_wait_for_a_task_that_a_quota_stops_in_collectives() -> None:
    run = gang(Worker(), Worker(compute=0.1), transfer=0.1)  # a step of 0.2 s, of it 0.12 stopped
    run.times.note_usage(ev.Usage(node="a", tasks={"worker:0": {"throttled": 0.0}}, clock=0.9))
    run.times.note_usage(ev.Usage(node="b", tasks={"worker:1": {"throttled": 0.6}}, clock=0.5))
    verdict = run.train()
    assert run.parts("worker:0")["waiting"] == pytest.approx(0.6, abs=1e-3)
    assert run.parts("worker:0")["compute"] == pytest.approx(0.25, abs=1e-3)
    stopped = run.parts("worker:1")
    assert stopped["compute"] == pytest.approx(0.5 + 0.35, abs=1e-3)
    assert stopped["transfer"] == run.parts("worker:0")["transfer"] == pytest.approx(0.15, abs=1e-3)
    assert verdict is not None
    assert (verdict.bound, verdict.causes) == (Bound.STRAGGLER, ("worker:1",))
    assert "a CPU quota stops it 60% of the time" in (verdict.message or "")
    assert "its node's clock is at 50%, theirs at 90%" in (verdict.message or "")


def test_a_throttled_task_is_not_blamed_for_another_one_that_is_slower() -> None:
    run = gang(Worker(other=0.1), Worker())
    used = {"worker:0": {"throttled": 0.0}, "worker:1": {"throttled": 0.6}}
    run.times.note_usage(ev.Usage(node="local", tasks=used))
    verdict = run.train()
    assert verdict is not None
    assert (verdict.bound, verdict.causes) == (Bound.PYTHON, ("worker:0",))


def test_one_machine_has_no_network_to_blame() -> None:
    run = gang(Worker(), Worker(), transfer=0.08)
    run.times.has_network = False
    assert run.train() is None
    assert run.parts("worker:0")["transfer"] == pytest.approx(0.62, abs=0.01)
