"""Writes down what happens: an event goes to ``events.jsonl``, into the state, and to disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfcluster.agent import budgets
from tfcluster.run import fold
from tfcluster.run.events import Event, Progress
from tfcluster.run.folder import EventLog, release_reserve, why_refused, write_json
from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.run.veiled import veiled

_PROGRESS_INTERVAL_S = 0.25
"""How often progress alone rewrites ``state.json``; anything else does so at once."""
_PAUSE = 9
"""Times as long as a save took, `keep_up` waits for the next: that of a thousand tasks takes
milliseconds, and must not take all the time while they start one after the other."""


class Journal:
    """Owns a run's state and its two files. `record` never fails, also on a full disk."""

    def __init__(
        self,
        state: RunSnapshot,
        paths: RunPaths,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        secrets: Sequence[str] = (),
    ) -> None:
        """`secrets`: values that are covered in all that is written. `timer`: of pauses, which a
        clock that is set must not make longer."""
        self._secrets = secrets
        self.state = state
        self.paths = paths
        self._clock, self._timer = clock, timer
        self._log = EventLog(paths.events, clock=clock)
        self.heard: Callable[[Event], None] = lambda event: None
        """Called after each event; may call `save`."""
        self._is_dirty, self._is_urgent = True, True
        self._refusal: OSError | None = None
        """Why the state was not saved last."""
        self._saved_at = self._may_save_at = 0.0
        self.save()

    def record(self, event: Event) -> None:
        event = veiled(event, self._secrets)
        has_room = self._log.waiting_bytes < budgets.UNWRITTEN_EVENTS
        if has_room or not isinstance(event, Progress):
            self._log.append(event)
        fold.apply(self.state, event, self._clock(), self.paths)
        self.touch(urgent=not isinstance(event, Progress))
        self.heard(event)

    def task(self, task: str) -> TaskSnapshot:
        return self.state.task(task)

    def wait_for(self, what: str | None) -> None:
        """Have `status` say what the next start waits for; None: nothing any more."""
        self.state.waits_for = what
        self.touch()

    def note_gathering(self, facts: Mapping[str, Any] | None) -> None:
        """Have `status` say what is being copied; None: nothing any more."""
        self.state.gathering = None if facts is None else dict(facts)
        self.touch(urgent=False)

    def touch(self, *, urgent: bool = True) -> None:
        """Have the state saved with the next `save`."""
        self._is_dirty = True
        self._is_urgent |= urgent

    def save(self) -> bool:
        """Bring everything to disk that is due; whether nothing is left behind."""
        now = self._clock()
        if self._is_dirty and (self._is_urgent or now - self._saved_at >= _PROGRESS_INTERVAL_S):
            began = self._timer()
            if write_json(self.paths.state, self.state.to_json(), None, self._note_refusal):
                self._is_dirty, self._is_urgent, self._saved_at = False, False, now
                self._refusal = None
                self._may_save_at = self._timer() + _PAUSE * (self._timer() - began)
            else:
                self._may_save_at = began + _PROGRESS_INTERVAL_S
        return self._log.flush() and not self._is_urgent

    def keep_up(self) -> None:
        """`save`, in a tenth of the time at most, however large the state is."""
        if self._timer() >= self._may_save_at:
            self.save()

    @property
    def wake_s(self) -> float | None:
        """How soon `save` should be called again, seconds; None when nothing waits for it."""
        if not self._is_dirty:
            return None
        pause_s = self._may_save_at - self._timer()
        return max(0.0, pause_s) if self._is_urgent else _PROGRESS_INTERVAL_S

    def close(self) -> str:
        """Save what is left, on a full disk too; why it was not taken, empty where all was."""
        self._is_urgent = self._is_dirty
        if not (saved := self.save()):
            release_reserve(self.paths)
            saved = self.save()
        release_reserve(self.paths)
        self._log.close()
        if saved:
            return ""
        refusal = self._refusal or self._log.refusal
        assert refusal is not None
        return why_refused(refusal)

    def _note_refusal(self, error: OSError) -> None:
        self._refusal = error
