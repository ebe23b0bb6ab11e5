"""Shows that a run waits for files to be copied, and how far that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tfcluster.run.events import Event, Gathering

_LOOK_EVERY_S = 1.0
_TOLD_AFTER, _TOLD_EVERY = 5, 30
"""Looks: what is over soon is no news, and a log of a build machine wants few lines."""


async def show(
    look: Callable[[], Mapping[str, Any] | None],
    note: Callable[[Mapping[str, Any] | None], None],
    tell: Callable[[Event], None],
) -> None:
    """Until cancelled: `note` what `look` sees each second, and `tell` of a long wait."""
    looks, before = 0, None
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = look()
        if now != before:
            note(now)
        looks, before = looks + 1 if now else 0, now
        if now and looks % _TOLD_EVERY == _TOLD_AFTER:
            tell(Gathering(**now))
