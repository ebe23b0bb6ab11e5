"""What is known of a failure: by its words (messages.py), else by its circumstance.

Every row has a section in ``docs/failures.md``.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfcluster.run.messages import MESSAGES as MESSAGES
from tfcluster.run.messages import PERMANENT as PERMANENT
from tfcluster.run.messages import PORT_TAKEN as PORT_TAKEN
from tfcluster.run.messages import Known as Known

WITHOUT_KERAS_3 = (
    "the spec asks for Keras 3, with which this does not work: --set keras.version=2 instead runs"
    " it with tf_keras"
)
CIRCUMSTANCES: Mapping[str, Known] = {
    "SIGKILL": Known(
        "sigkill",
        "usual suspects: the kernel short of memory (`dmesg`, or a container's limit), a batch"
        " system's limit, a person",
    ),
    "SIGSEGV": Known(
        "native-crash",
        "a crash in native code: packages or drivers that do not fit TensorFlow, as a rule;"
        " PYTHONFAULTHANDLER=1 shows where",
    ),
    "SIGABRT": Known(
        "native-crash",
        "native code gave up; the last line that begins with F, or has CHECK failed, says why",
    ),
    "SIGILL": Known(
        "illegal-instruction", "TensorFlow was built for a newer processor: its wheels need AVX"
    ),
    "SIGBUS": Known(
        "bus-error", "/dev/shm or a disk is full, or a file shrank while it was mapped into memory"
    ),
    "SIGTERM": Known(
        "sigterm",
        "something outside asked it to end: a batch system, a container engine, a person",
    ),
    "out_of_memory": Known(
        "out-of-memory",
        "fewer tasks on this machine, smaller batches or shuffle buffers, no cache() in memory",
    ),
    "preempted": Known("preempted", "its machine is about to go; it has saved its state"),
    "node_lost": Known(
        "node-lost", "its host or its agent is gone: look whether the machine is up and has memory"
    ),
    "link_lost": Known(
        "link-lost",
        "the host is up, but TensorFlow's connections to it broke: look at its network, at"
        " firewalls and at idle time-outs between the hosts",
    ),
    "frozen": Known("frozen", "something stopped the process: SIGSTOP, Ctrl-Z, a debugger"),
    "late": Known("late", "the end of its log says what it did last, and where its threads stood"),
    "unfinished": Known(
        "unfinished",
        "a longer time: --set supervision.finish_grace_s=SECONDS; a worker that only serves calls"
        " tf.distribute.Server.join(), and is then ended after the chief",
    ),
    "stalled": Known(
        "stalled",
        "tasks may wait for each other: saving or evaluating on the chief alone, or uneven batches;"
        " their stacks are in the logs",
    ),
    "start_failed": Known("start-failed", "`tfcluster plan --task` shows its command"),
    "refused_arguments": Known(
        "refused-arguments",
        "the script refuses its arguments: `tfcluster plan --task` shows all of them, and which"
        " of job.args and job.per_task they come from",
        kind=PERMANENT,
    ),
    "collateral": Known(
        "no-cause",
        "every task blames another and none failed by itself: the network between them was cut",
    ),
    "exit code 126": Known("command-not-found", "the command is not executable"),
    "exit code 127": Known("command-not-found", "the command is not on the task's PATH"),
}
"""Kind of a failure, name of a signal or code → what is usually behind it."""


def find(said: str, *, log: str = "", traceback: str = "") -> Known | None:
    """The first row that knows `said`, the words a task ended with.

    `log`, for a task that ended without words or still waits: lines of it may tell, too.
    """
    for known in MESSAGES:
        places = [traceback] if known.is_traced else [said, log] if known.is_logged else [said]
        if any(known.matches(place) for place in places):
            return known
    return None


def of_circumstance(name: str) -> Known | None:
    return CIRCUMSTANCES.get(name)
