"""The lease on a run's folder: one pod at a time coordinates the run on a volume.

A coordinator's pod may be replaced while the old one still runs on a node that lost its network.
The holder renews a file beside the run folder. Another pod waits until the file stays the same for
`STALE_S` by its own clock, or until the cluster says that the holder's pod has certainly ended.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tfcluster.agent import foreign_json

RENEW_S = 5.0
STALE_S = 30.0
_POLL_S = 1.0
_SETTLE_S = 1.0
"""Two pods may find the same stale lease: each checks after this time that its own one stayed."""
LOST = 75
"""The exit code of a coordinator that has lost its lease (EX_TEMPFAIL)."""


def _exit() -> NoReturn:
    os._exit(LOST)


@dataclass(slots=True)
class Lease:
    """The lease of the pod `holder` in a file."""

    path: Path
    holder: str
    has_ended: Callable[[str], bool]
    """Returns whether another pod has certainly ended."""
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    lose: Callable[[], None] = _exit
    """Called once another pod has the lease."""
    _beat: int = field(default=0)

    def take(self) -> None:
        """Wait until no other pod holds the lease, and take it."""
        while (was_held := self._await_free()) or self._read()[0] != self.holder:
            self._write()
            if was_held:
                self.sleep(_SETTLE_S)
            if self._read()[0] == self.holder:
                return

    def keep(self) -> None:
        """Renew the lease in a thread."""
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def renew(self) -> None:
        """Renew the lease once, unless another pod has taken it."""
        if self._read()[0] not in ("", self.holder):
            self.lose()
        else:
            self._write()

    def _keep(self) -> None:
        while True:
            self.sleep(RENEW_S)
            try:
                self.renew()
            except OSError:  # a full disk or a volume that is away: the next call tries again
                continue

    def _await_free(self) -> bool:
        """Wait until the lease is free or ours; return whether another pod had it."""
        seen, since, was_held = ("", ""), self.now(), False
        while True:
            found = self._read()
            if found[0] in ("", self.holder):
                return was_held
            was_held = True
            if found != seen:
                seen, since = found, self.now()
            if self.now() - since >= STALE_S or self.has_ended(found[0]):
                return True
            self.sleep(_POLL_S)

    def _read(self) -> tuple[str, str]:
        """Return the holder, and all that the file says."""
        try:
            text = self.path.read_text(encoding="utf-8")
            return str(foreign_json.parse_json_object(text)["pod"]), text
        except (FileNotFoundError, ValueError, KeyError):
            return "", ""

    def _write(self) -> None:
        self._beat += 1
        fresh = self.path.with_name(f"{self.path.name}.{self.holder}")
        fresh.write_text(json.dumps({"pod": self.holder, "beat": self._beat}), encoding="utf-8")
        fresh.replace(self.path)
