"""Downloads, silent loops and scripts without TensorFlow do not exceed a deadline.

The table of faults covers a peer that never starts: it is named after `start_deadline_s`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.commandline import CommandLine

from .bare import PYTHONS

HERE = Path(__file__).parent
DEADLINE_S = 6
"""The start and the stall deadline; the jobs are silent for longer."""
SILENCE_S = 9


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_long_download_and_a_silent_loop_exceed_no_deadline(shell: CommandLine) -> None:
    job = {"script": str(HERE / "slow_start.py"), "args": [str(SILENCE_S)]}
    deadlines = {"start_deadline_s": DEADLINE_S, "stall_deadline_s": DEADLINE_S}
    spec = shell.spec("slow.json", job, supervision=deadlines)

    done = shell.run("up", f"--python={PYTHONS['tf215']}", str(spec), timeout=200)

    assert done.code == 0, done.err[-3000:] + done.out.decode()[-3000:]
    assert shell.log("worker:1").decode().count("ended with 2") == 1
    assert not [event for event in shell.events() if event["type"] in {"stalled", "restarting"}]


@pytest.mark.parametrize("kind", ["training", "plain"])
def test_a_script_without_tensorflow_has_no_start_deadline(shell: CommandLine, kind: str) -> None:
    shell.script("plain.py", "import time; time.sleep(2.5); print('done')")
    job = {"script": "plain.py", "kind": kind}
    deadlines = {"start_deadline_s": 0.5, "stall_deadline_s": 0.5}
    spec = shell.spec("plain.json", job, supervision=deadlines)

    done = shell.run("up", str(spec))

    assert done.code == 0, done.err
    assert shell.log("worker:0") == b"done\n"
    assert not [event for event in shell.events() if event["type"] == "stalled"]
