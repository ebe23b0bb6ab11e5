"""Writes down what happens: an event goes to ``events.jsonl``, into the state, and to disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tfcluster.run import fold
from tfcluster.run.events import Event, Progress
from tfcluster.run.folder import EventLog, release_reserve, write_json
from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.run.veiled import veiled

_PROGRESS_INTERVAL_S = 0.25
"""How often progress alone rewrites ``state.json``; anything else does so at once."""


class Journal:
    """Owns a run's state and its two files. `record` never fails, also on a full disk."""

    def __init__(
        self,
        state: RunSnapshot,
        paths: RunPaths,
        *,
        clock: Callable[[], float] = time.time,
        secrets: Sequence[str] = (),
    ) -> None:
        """`secrets`: values that are covered in all that is written."""
        self._secrets = secrets
        self.state = state
        self.paths = paths
        self._clock = clock
        self._log = EventLog(paths.events, clock=clock)
        self.heard: Callable[[Event], None] = lambda event: None
        """Called after each event; may call `save`."""
        self._is_dirty, self._is_urgent, self._saved_at = True, True, 0.0
        self.save()

    def record(self, event: Event) -> None:
        event = veiled(event, self._secrets)
        self._log.append(event)
        fold.apply(self.state, event, self._clock(), self.paths)
        self.touch(urgent=not isinstance(event, Progress))
        self.heard(event)

    def task(self, task: str) -> TaskSnapshot:
        return fold.task_of(self.state, task)

    def wait_for(self, what: str | None) -> None:
        """Have `status` say what the next start waits for; None: nothing any more."""
        self.state.waits_for = what
        self.touch()

    def touch(self, *, urgent: bool = True) -> None:
        """Have the state saved with the next `save`."""
        self._is_dirty = True
        self._is_urgent |= urgent

    def save(self) -> bool:
        """Bring everything to disk that is due; whether nothing is left behind."""
        now = self._clock()
        due = self._is_urgent or now - self._saved_at >= _PROGRESS_INTERVAL_S
        if self._is_dirty and due and write_json(self.paths.state, self.state.to_json()):
            self._is_dirty, self._is_urgent, self._saved_at = False, False, now
        return self._log.flush() and not self._is_urgent

    @property
    def wake_s(self) -> float | None:
        """How soon `save` should be called again, seconds; None when nothing waits for it."""
        return _PROGRESS_INTERVAL_S if self._is_dirty else None

    def close(self) -> bool:
        """Save what is left, on a full disk too; False where it did not take everything."""
        self._is_urgent = True
        if not (saved := self.save()):
            release_reserve(self.paths)
            saved = self.save()
        release_reserve(self.paths)
        self._log.close()
        return saved
