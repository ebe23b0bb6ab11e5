"""What is to happen when: named moments, so that deciding needs no clock of its own."""

from __future__ import annotations


class Timers:
    """Each name stands for one moment at most; times are seconds of any one clock."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def set(self, name: str, at: float) -> None:
        """Move `name` to `at`, wherever it was before."""
        self._at[name] = at

    def set_once(self, name: str, at: float) -> None:
        """Leave `name` where it is if it is already set."""
        self._at.setdefault(name, at)

    def put(self, name: str, at: float | None) -> None:
        """Move `name` to `at`, or clear it."""
        if at is None:
            self.clear(name)
        else:
            self.set(name, at)

    def clear(self, *names: str) -> None:
        for name in names:
            self._at.pop(name, None)

    def clear_all(self, *, but: tuple[str, ...] = ()) -> None:
        self._at = {name: at for name, at in self._at.items() if name in but}

    def __contains__(self, name: str) -> bool:
        return name in self._at

    @property
    def next(self) -> float | None:
        """The earliest moment; None when nothing is set."""
        return min(self._at.values(), default=None)

    def take_due(self, now: float) -> list[str]:
        """The names whose moment has come, earliest first; they are no longer set."""
        due = sorted((at, name) for name, at in self._at.items() if at <= now)
        for _, name in due:
            del self._at[name]
        return [name for _, name in due]
