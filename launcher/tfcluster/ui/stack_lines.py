"""The stacks of a run's tasks as text (`tfcluster stacks`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tfcluster.ui.formats import plural
from tfcluster.ui.lines import sanitize_text

_PACKAGES: Final = re.compile(r".*/(?:(?:site|dist)-packages|bundles/[0-9a-f]+/workers)/")
"""The folders before a package of Python, or before `tfcluster_workers` on a task's node."""


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
