"""Detects tasks that hang: never join, make no progress, are stopped or outlive the rest (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.plan.plan import Plan, Supervision
from tfcluster.rundir import events as ev
from tfcluster.supervision import connectivity, verdicts
from tfcluster.supervision.attempt_state import AttemptState
from tfcluster.supervision.decisions import ProbeLinks
from tfcluster.supervision.failure import Kind
from tfcluster.supervision.member import Member
from tfcluster.supervision.member_counts import MemberCounts
from tfcluster.supervision.verdicts import FROZEN_S, Verdict

NOTICE_S: Final = 600.0
"""The silence after which a run without a stall deadline reports it, once."""
_GAPS_ALLOWED: Final = 3.0
"""The silence allowed in any case, as a multiple of the longest gap between two steps."""


@dataclass(slots=True)
class SilenceLimits:
    """The silence limits of one attempt; times are seconds of the coordinator's clock."""

    policy: Supervision
    heard_at: float | None = None
    """The last sign of life after the first progress; None before it."""
    longest_gap_s: float = 0.0
    noticed: bool = False
    """True once a silence has been reported that no deadline ends."""
    _ready_at: float | None = None

    def note(self, report: msg.TaskReport, now: float) -> None:
        """Note a report of any task of the gang."""
        match report:
            case msg.Ready() if self._ready_at is None:
                self._ready_at = now
            case msg.Progress():
                self._note_step(report, now)
            case msg.Alive() | msg.Evaluated() | msg.Saved() | msg.SavedElsewhere():
                self.heard_at = None if self.heard_at is None else now

    def _note_step(self, report: msg.Progress, now: float) -> None:
        since = self.heard_at
        if since is None and report.steps_per_execution:
            since = self._ready_at  # its first execution was as long as the next will be
        if since is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - since)
        self.heard_at = now

    def note_output(self, at: float) -> None:
        """Note that a task has written a line at `at`."""
        if self.heard_at is not None:
            self.heard_at = max(self.heard_at, at)

    def start_due(self, gang: MemberCounts) -> float | None:
        """Return when the start counts as failed; None while no task waits for its peers.

        Only tasks that wait now count: the wait of a task that was restarted alone begins again.
        """
        if any(standing.has_searched and standing.is_core for standing in gang.standings()):
            return None  # a tuner that joins after the search waits until the run is over
        since = gang.waits_since()
        return None if since is None else since + self.policy.start_deadline_s

    @property
    def stall_due(self) -> float | None:
        """The moment when a silence is too long; None before the first progress or once noticed."""
        if self.heard_at is None or self.noticed:
            return None
        limit = self.policy.stall_deadline_s or NOTICE_S
        return self.heard_at + max(limit, _GAPS_ALLOWED * self.longest_gap_s)


STACKS_S: Final = 1.0
"""The time that tasks get to write their stacks before they are stopped."""


class Watch:
    """The watch over one attempt after another; `plain` tasks wait for no peer and are exempt."""

    def __init__(
        self,
        plan: Plan,
        attempt_state: AttemptState,
        last_output: Callable[[], float],
        last_line: Callable[[Member], str],
        absent: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Take `absent`, which returns the unreachable tasks elsewhere, each with the reason."""
        self._policy, self._attempt_state = plan.supervision, attempt_state
        self._gang, self._timers = attempt_state.gang, attempt_state.timers
        self._orders = attempt_state.orders
        self._last_output, self._last_line, self._absent = last_output, last_line, absent
        self._is_part = bool(plan.elsewhere)
        self._forms_gang = plan.kind != "plain"
        self._links_break = self._forms_gang and connectivity.can_break(plan)
        self._has_probed_links = False
        self._silence = SilenceLimits(self._policy)
        self._why_end = ""

    def begin(self) -> None:
        """Reset the limits for a new attempt."""
        self._silence, self._has_probed_links = SilenceLimits(self._policy), False

    def probe_links_once(self) -> None:
        """Have the links between nodes probed if tasks failed but none by itself.

        This happens once per attempt and at once: the links may work again soon.
        """
        failures = self._gang.failures
        if self._has_probed_links or not (self._links_break and failures):
            return
        if all(failure.is_collateral or failure.kind is Kind.LATE for failure in failures):
            self._has_probed_links = True
            self._orders.add(ProbeLinks(self._gang.number))

    def note_lost_links(self, lost: Mapping[str, str], now: float) -> None:
        """Blame the hosts whose links are lost; `lost`: node → description, from the probes."""
        if not lost and all(failure.is_collateral for failure in self._gang.failures):
            nodes = {str(member.id): member.node for member in self._gang}
            lost = connectivity.find_missed_heartbeats(self._gang.failures, nodes)
        for node, description in lost.items():
            on_node = (m for m in self._gang.core() if m.node == node)
            if member := next(
                (m for m in on_node if not m.restarts_alone and not m.end().ok), None
            ):
                self._gang.blame(member, Kind.LINK_LOST, description)
        if lost and self._attempt_state.is_training:
            self._attempt_state.end_gang("the link between hosts is lost", now)

    def note(self, member: Member, report: msg.TaskReport, now: float) -> None:
        """Note a sign of life; an evaluator's says nothing about the gang."""
        if member.id.job != "evaluator":
            self._silence.note(report, now)

    def froze(self, member: Member, signal: int, now: float) -> None:
        if self._forms_gang:
            member.frozen_by = signal
            self._timers.set(f"frozen {member.id}", now + FROZEN_S)

    def thawed(self, member: Member) -> None:
        member.frozen_by = None
        self._timers.clear(f"frozen {member.id}")

    def set_deadlines(self, *, waits_for_all: bool) -> None:
        """Set the start and stall deadlines; call it after anything that may move them.

        Unless `waits_for_all` they are cleared: the run is finishing, and `finish_grace_s` applies.
        """
        if not waits_for_all:
            self._timers.clear("start", "stall")
        elif self._forms_gang and not self.has_stacks_written:
            self._timers.put("start", self._silence.start_due(self._gang.member_counts))
            self._timers.put("stall", self._silence.stall_due)

    @property
    def has_stacks_written(self) -> bool:
        """True while tasks that will be stopped write their stacks."""
        return "stacks" in self._timers

    def due(self, name: str, member: Member | None, now: float) -> None:
        """Act on the timer `name`, which is due."""
        core = self._gang.core()
        match name:
            case "cause":
                self.act_on(verdicts.blame_survivors(core, is_part=self._is_part), now)
            case "frozen" if member is not None and member.is_running:
                if not (member.is_stopping or self.has_stacks_written):
                    self.act_on(verdicts.blame_frozen(member), now)
            case "start":
                limit = self._policy.start_deadline_s
                absent = self._absent()
                self.act_on(verdicts.blame_missing(core, limit, self._last_line, now, absent), now)
            case "stall":
                self._due_stall(now)
            case "stacks" if self._attempt_state.ending is not None:
                self._attempt_state.end_run(self._why_end, self._attempt_state.ending, now)
            case "stacks":
                self._attempt_state.end_gang(self._why_end, now)

    def _due_stall(self, now: float) -> None:
        self._silence.note_output(self._last_output())
        due, since = self._silence.stall_due, self._silence.heard_at
        running = any(member.is_running for member in self._gang.core())
        if due is None or since is None or due > now or not running:
            return
        limit = self._policy.stall_deadline_s
        self._orders.record(ev.Stalled(silent_s=round(now - since, 1), deadline_s=limit))
        if limit is None:
            self._silence.noticed = True
            self._orders.dump_stacks(self._gang.running())
        else:
            self.act_on(verdicts.blame_stalled(self._gang.core(), now - since), now)

    def end_late(self, last_step: int | None, now: float) -> None:
        """Stop all tasks that still run `finish_grace_s` after the chief's success.

        A worker that still works independently makes the run fail: its work is interrupted.
        `last_step` is the step of the last checkpoint.
        """
        grace_s, unfinished = self._policy.finish_grace_s, self._gang.unfinished()
        description = f"it had not finished {grace_s:g} s after the chief and was stopped"
        for member in unfinished:
            self._gang.blame(member, Kind.UNFINISHED, description)
        late = [
            member
            for member in self._gang.running()
            if not (member.serves or member.is_stopping or member in unfinished)
        ]
        for warning in verdicts.warn_about_late(late, grace_s, last_step):
            self._orders.record(ev.Warned(message=warning))
        self._attempt_state.end_rest("the others have ended", now)

    def act_on(self, verdict: Verdict, now: float) -> None:
        """Blame the tasks of a verdict, have stacks written if it wants them, and stop tasks."""
        for member, description in verdict.blamed:
            self._gang.blame(member, verdict.kind, description)
        self._attempt_state.ending = verdict.outcome or self._attempt_state.ending
        if verdict.wants_stacks:
            self._orders.dump_stacks(self._gang.running())
            self._timers.clear("start", "stall")
            self._timers.set("stacks", now + STACKS_S)
            self._why_end = verdict.why_end
        elif verdict.outcome is not None:
            if not verdict.blamed:
                self._attempt_state.diagnose()
            self._attempt_state.end_run(verdict.why_end, verdict.outcome, now)
        else:
            frozen = [m for m, _ in verdict.blamed if m.frozen_by is not None]
            self._orders.stop(frozen, verdict.why_end, now, grace_s=0.0)
            if not verdict.blamed or any(not member.restarts_alone for member, _ in verdict.blamed):
                self._attempt_state.end_gang(verdict.why_end, now)
