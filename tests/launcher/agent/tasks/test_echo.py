"""The second place for the output of tasks: the log of their container."""

from __future__ import annotations

import os
from pathlib import Path

from tfcluster.agent.tasks.output import Echo, Log, Mask


def test_all_logs_are_echoed_masked(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    echo = Echo(f"/proc/self/fd/{write_end}")
    log = Log(str(tmp_path / "a.log"), Mask([b"hunter2"]), echo)
    assert log.mask is not None
    log.append(memoryview(log.mask.apply(b"the word is hunter2\n")))
    Log(str(tmp_path / "b.log"), None, echo).append(memoryview(b"another task\n"))
    assert os.read(read_end, 100) == b"the word is ********\nanother task\n"


def test_a_full_or_missing_echo_costs_no_line_of_the_log(tmp_path: Path) -> None:
    _, write_end = os.pipe()
    full = Echo(f"/proc/self/fd/{write_end}")
    full.write(b"x" * (1 << 20))
    for echo in (full, Echo(str(tmp_path / "missing" / "file"))):
        log = Log(str(tmp_path / "task.log"), None, echo)
        assert log.append(memoryview(b"a line\n")) == 7
    assert (tmp_path / "task.log").read_bytes() == b"a line\n" * 2
