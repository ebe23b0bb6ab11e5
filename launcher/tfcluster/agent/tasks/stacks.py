"""The stacks of a task's threads, as `faulthandler` writes them into its log after a signal.

`tfcluster_workers.boot` has faulthandler answer `SIGNAL` (Python/traceback.c has the format). It
does so from a signal handler in C: also for a thread that waits in native code, and whatever holds
the interpreter's lock. A process that is stopped, or in uninterruptible sleep, does not answer.
"""

from __future__ import annotations

import re
import signal

from tfcluster.agent import catalogue as msg
from tfcluster.agent.processes import state_of
from tfcluster.agent.tasks.output import OutputFile

SIGNAL = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1
"""Not SIGUSR1, if possible: scripts for Slurm take that one as the warning to save and exit."""
PATIENCE_S = 4.0
"""The time for an answer: a busy machine takes a while to schedule the process."""
LOOK_EVERY_S = 0.1
"""The time between two looks at whether an answer is complete."""
_MOST_BYTES = 1 << 20
_MOST_THREADS = 32
MOST_FRAMES = 60
"""The frames of one thread, innermost first; faulthandler itself writes at most 100."""
_CODE_CHARACTERS = 200
_SOURCE_BYTES = 4 << 20
"""The size of a source file from which a line is shown."""
_HEAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
OUTERMOST = ("<module>", "_run_module_as_main")
"""The outermost functions of a main thread, whose stack faulthandler writes last."""
_INSTALLED = re.compile(
    r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|/tfcluster_workers/(?!jobs/)"
)


class StacksQuestion:
    """A request for a task's stacks, from the signal to the answer in its log."""

    def __init__(self, log: OutputFile, now: float) -> None:
        """Note where the answer will begin; the caller sends the signal afterwards."""
        self._log, self._begin = log, log.size
        self._until = now + PATIENCE_S
        self.check_at = now + LOOK_EVERY_S
        """The time of the next call of `is_answered`."""

    def is_answered(self, now: float) -> bool:
        """Return whether the answer is complete, or will not come any more."""
        self.check_at = now + LOOK_EVERY_S
        return now >= self._until or self._is_whole()

    def _is_whole(self) -> bool:
        """Return whether the stack of the main thread is there to its end."""
        if self._log.size == self._begin:
            return False
        lines = self._log.read(self._begin, _MOST_BYTES).decode(errors="replace").splitlines()
        frames = [match[3] for line in lines if (match := _FRAME.fullmatch(line))]
        return bool(frames) and frames[-1] in OUTERMOST

    def threads(self) -> list[msg.Thread]:
        """Return the stacks that the log has now, the main thread first; none without an answer."""
        text = self._log.read(self._begin, _MOST_BYTES).decode(errors="replace")
        return parse(text)


def parse(text: str) -> list[msg.Thread]:
    """Return the threads of the last dump in `text`, the main thread first."""
    threads: list[list[msg.Frame]] = []
    for line in text.splitlines():
        # A progress bar without a newline may stand before the first thread.
        if _HEAD.search(line):
            threads.append([])
        elif threads and (match := _FRAME.fullmatch(line)) and len(threads[-1]) < MOST_FRAMES:
            threads[-1].append(msg.Frame(file=match[1], line=int(match[2]), function=match[3]))
    # The threads are written from the newest to the oldest, which is the main one.
    parsed = [msg.Thread(frames=_with_code(frames)) for frames in reversed(threads) if frames]
    return parsed[:_MOST_THREADS]


def _with_code(frames: list[msg.Frame]) -> list[msg.Frame]:
    """Return `frames` with the source line of those that are not of an installed package."""
    return [
        frame
        if _INSTALLED.search(frame.file)
        else msg.Frame(
            file=frame.file,
            line=frame.line,
            function=frame.function,
            code=_source_line(frame.file, frame.line),
        )
        for frame in frames
    ]


def _source_line(path: str, number: int) -> str:
    """Return one line of a source file, or an empty string."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_SOURCE_BYTES).splitlines()[max(0, number - 1) : number]
    except OSError:
        return ""
    return lines[0].decode(errors="replace").strip()[:_CODE_CHARACTERS] if lines else ""


def explain_silence(pid: int) -> str:
    """Return why a process does not answer: its state in the kernel; empty if that says nothing."""
    return {
        "T": "it is stopped by a signal",
        "t": "a debugger holds it",
        "D": "it is in uninterruptible sleep (a dead file server, a device driver)",
    }.get(state_of(pid), "")
