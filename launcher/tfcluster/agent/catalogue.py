"""The catalogue of messages: every order, every report and every task's report, declared once.

The base class is the direction, and what a message may be about:

=============  ==================================================================================
`Order`        coordinator → agent; `FileOrder`: for its file process, which answers with the `id`
`Report`       agent → coordinator, about its node; `FileReport`: an answer of the file process
`TaskMessage`  agent → coordinator, about a task of its node in an attempt that was ordered
`TaskReport`   task → agent → coordinator, inside a `TaskEvent`; see `tfcluster_workers.reporting`
`Part`         a part of a message
=============  ==================================================================================

A message that is an `Event`, too, is recorded in ``events.jsonl`` as it comes.

`message_fields._READERS` says what each type of field may hold; `nodes.hub` enforces the rest.
"""

from __future__ import annotations

from tfcluster.agent.message_fields import Event, Message

PREPARE = "prepare"
"""The name of a node's prepare step, in the place of a task's."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    Text = str
    Path = str
    NodeName = str
    Host = str
    Name = str
    Folder = str
    Line = str
    LoadCall = str
    LongText = str
    Traceback = str
    Unsigned = int
    Integer = int
    Step = int
    Real = float
    Strings = Sequence[str]
    Env = Mapping[str, str]
    Ports = Mapping[str, int]
    Metrics = Mapping[str, float]
    Values = Mapping[str, Any]
    Json = Mapping[str, Any]
    Entry = tuple[str, int, int]

EMPTY: Mapping[str, Any] = {}

# fmt: off

class Part(Message): ...
class Order(Message): ...
class Report(Message): ...

class TaskMessage(Report):
    task: Text
    attempt: Unsigned

class FileOrder(Order):
    """Answered by `FileFailed` if it cannot be carried out."""
    id: int

class FileReport(Report):
    id: Unsigned

class TaskReport(Message):
    is_lenient = True
    task: Text = ""
    """Set by the coordinator, which knows whose report it is, like `attempt`."""
    attempt: Unsigned = 0

# -- orders ---------------------------------------------------------------------------------

class Hello(Order):
    """The first message over a connection; answered by `Welcome` or `Refused`."""
    protocol: int = 0
    run_id: str = ""
    node: str = ""
    token: str = ""
    stream_logs: bool = False
    last_seen: int = 0
    log_offsets: Json = EMPTY

class PortRequest(Part):
    task: str
    host: str
    port: int
    """0 lets the agent choose."""
    reuses_address: bool = False
    """True if the task binds its port with SO_REUSEADDR only."""

class HoldPorts(Order):
    """Answered by `PortsHeld` or `PortTaken`."""
    ports: list[PortRequest]
    among: list[int] = ()  # type: ignore[assignment]
    """The first and the last port that may be chosen; empty: any."""
    interface: str | None = None
    """The interface whose address `PortsHeld` has: its name, a subnet or a pattern of names."""

class Process(Part):
    argv: Strings
    env: Env = EMPTY
    """Variables that are added to the node's environment without `unset`."""
    unset: Strings = ()
    cwd: str = "/"
    cores: list[int] | None = None

class TaskOrder(Process):
    task: str
    log: str
    preload: bool = False
    """True if the task is to be a fork of the preloading process."""
    secrets: Strings = ()
    """Names in `env` whose values are masked in the log."""
    place: Json | None = None
    """The part of TF_CONFIG that is this task's own: `task`, and `cluster` for an evaluator."""

class Start(Order):
    """Each task is answered by `TaskStarted` or `StartFailed`."""
    attempt: int
    tasks: list[TaskOrder]
    cluster: Json = EMPTY
    """Job → addresses: `cluster` in the TF_CONFIG of each task, sent once for all of a node."""

class SetLease(Order):
    """A longer lease, for a run that goes on in the background."""
    lease_s: float

class Preload(Order):
    """Answered by `PreloadReady` or `PreloadFailed`."""
    process: Process
    key: str | None = None
    """An order with the same key may use the process of an earlier run."""
    within_s: float = 120.0
    """The time for the imports; longer ones hang, on a dead file server for example."""

class Stop(Order):
    """SIGTERM to the tasks' groups, and SIGKILL after `grace_s`."""
    tasks: Strings
    grace_s: float

class Signal(Order):
    tasks: Strings
    signal: int

class TakeStacks(Order):
    """Have tasks write their stacks to their logs; each is answered by `Stacks`.

    For tasks with hooks only: the signal would end the others.
    """
    tasks: Strings

class TraceSteps(Order):
    """Have a task trace steps with TensorFlow's profiler; it answers with `Profiled`."""
    task: str
    id: str
    file: str
    """The path of the trace."""
    within_s: float
    """The time in which the trace must begin."""
    first: int = 0
    """The trace begins at the end of this step."""
    steps: int = 0
    delay_s: float = 0.0
    """The time until the trace of a task that takes no steps begins."""
    seconds: float = 0.0
    """The length of the trace of such a task."""

class Terminal(Part):
    kind: str
    """The value of TERM."""
    rows: int
    columns: int

class Exec(Order):
    """Run a command beside a task; answered by `ExecStarted` and `ExecEnded`, or `ExecFailed`.

    What it reads and writes are `X` frames (`agent.exec_frames`).
    """
    id: int
    task: str
    argv: Strings
    terminal: Terminal | None = None
    """The user's terminal; None gives the command pipes."""

class EndExec(Order):
    """Kill such a command with all that it has started."""
    id: int

class Shutdown(Order):
    stays: bool = False
    """True if a warm agent may wait for the next run."""
    remove: Strings = ()
    """This run's folders on the node that nobody needs."""

class KillAgent(Order): ...

class FileEntry(Part):
    """A symbolic link if it has `link`, else the file with the digest `sha512`."""
    path: str
    link: str | None = None
    sha512: str | None = None
    size: int = 0
    mode: int = 0o600
    mtime_ns: int | None = None

class Receive(FileOrder):
    """Answered by `Wants` and `Took`, then `Received`."""
    into: str
    files: list[FileEntry]
    more: bool = False
    """True if the list goes on in the next order of this `id`."""
    keep: bool = False
    """True if the files stay in the cache."""
    unless_there: bool = False
    """True if an existing folder is left as it is."""
    adds: bool = False
    """True if other files in the folder stay, except those in `removed`."""
    removed: Strings = ()

class Scan(FileOrder):
    """Answered by `Scanned`."""
    folder: str
    most: int
    changes: bool = False
    """True if only what differs from the last such listing of this folder is wanted."""

class Read(FileOrder):
    """Answered by frames with the bytes from `offset` to `size`, then `ReadEnd`."""
    folder: str
    path: str
    size: int
    mtime_ns: int
    start: int = 0
    """The offset from which on the bytes are hashed."""
    offset: int = 0
    rate: float | None = None
    """The limit in bytes per second."""
    grows: bool = False
    """True if bytes may be appended after `size` meanwhile."""

class FindMarkedFolder(FileOrder):
    """Answered by `MarkedFolder`."""
    folders: Strings
    name: str
    text: str
    inode: int

class Written(FileOrder):
    at: int

class LiftRate(FileOrder): ...
class Cancel(FileOrder): ...
class DropFileOrders(Order): ...

# -- reports of an agent --------------------------------------------------------------------

class Location(Part):
    is_exact = True
    boot_id: Text
    machine: Text
    pid_namespace: Unsigned
    uid: Unsigned

class Identity(Part):
    """The processes whose end proves that of an agent and its guard (`agent.fencing`)."""
    is_exact = True
    pid: Unsigned
    started: Unsigned
    guard_pid: Unsigned
    guard_started: Unsigned
    where: Location

class Welcome(Report):
    pid: Unsigned
    guard_pid: Unsigned
    identity: Json | None = None
    """Checked as an `Identity`."""
    node: Text = ""
    python: Text = ""
    executable: Path | None = None
    last_seen: Unsigned = 0
    cache: Folder | None = None
    """The folder where a remote node keeps what it is sent."""

class Refused(Report):
    reason: Text

class AgentEnding(Report):
    signal: Unsigned

class EndAnnounced(Report):
    """The node's scheduler has sent a signal: it ends everything on the node after some grace."""

    signal: Unsigned

class WasStopped(Report):
    """The agent was stopped for longer than its lease, and asks whether it is still needed: the
    acknowledgement is the answer."""

    seconds: float

class GuardLost(Report): ...

class Bye(Report):
    stays: bool = False

class PortsHeld(Report, Event):
    node: Text = ""
    ports: Ports
    """Task → port, held for the whole run."""
    host: Host | None = None
    """The node's address on the interface that the spec names."""
    interfaces: list[Text] | None = None
    """The node's interfaces with their addresses, if none is the one that the spec names."""

class PortTaken(Report):
    task: Text
    host: Text
    port: Unsigned
    """0: no port of the range is free."""
    pid: Unsigned | None = None
    run_id: Text | None = None
    command: Text | None = None

class PreloadReady(Report):
    seconds: float

class PreloadFailed(Report):
    error: Text

class Unkillable(Report):
    """Processes that were killed and still live: of a task, or of an earlier attempt."""
    pids: list[Unsigned]
    task: Text | None = None
    attempt: Unsigned | None = None

class TaskStarted(TaskMessage, Event):
    node: Text = ""
    pid: Unsigned

class StartFailed(TaskMessage):
    error: Text

class TaskEvent(TaskMessage):
    """A report of the task itself, which is checked apart (`nodes.reports`)."""
    event: Json

class ReportsDropped(TaskMessage):
    count: Unsigned

class TaskFrozen(TaskMessage, Event):
    """A signal has stopped the task's process (SIGSTOP, SIGTSTP); it neither runs nor ends."""
    signal: Unsigned

class TaskThawed(TaskMessage, Event):
    """A stopped process runs again (SIGCONT)."""

class TaskExited(TaskMessage, Event):
    exit_code: Unsigned | None
    """The exit code; None where a signal ended the task."""
    signal: Unsigned | None = None
    ended_by: Text = "itself"
    """``itself`` or ``tfcluster``."""
    duration_s: float = 0.0
    peak_rss_bytes: Unsigned | None = None
    out_of_memory: Text | None = None
    """The evidence that the kernel killed it for lack of memory; None where there is none."""

class Frame(Part):
    """A function that a thread is in: the file and line, and the source of that line if known."""
    file: Text
    line: Unsigned
    function: Text
    code: Text = ""

class Thread(Part):
    frames: list[Frame]
    """Innermost first."""

class Stacks(TaskMessage):
    threads: list[Thread]
    """The main thread first; none if the task did not answer."""
    silence: Text = ""
    """The reason why it did not answer; empty if unknown."""
    load: float = 0.0
    """The processes of the node that run or want to, per core, on average over a minute."""

class TaskUsage(Part):
    """The memory and processor time that a task's processes use, since the previous report."""
    task: Text
    rss_bytes: Unsigned
    cores: float
    """Processor time per second: 1.5 is one and a half cores."""
    gpu: float | None = None
    """The use of its GPUs, 0 to 1."""
    gpu_memory_bytes: Unsigned | None = None
    throttled: float | None = None
    """The part of the time in which a CPU quota has stopped it, 0 to 1."""

class NodeUsage(Report):
    """Sent every few seconds, with all running tasks of the node."""
    tasks: list[TaskUsage]
    load: float | None = None
    """The processes of the node that run or want to, per core, on average over a minute."""
    memory_stall: float | None = None
    """The part of the last ten seconds in which some process waited for memory (PSI), 0 to 1."""
    clock: float | None = None
    """The clock of the first core as a part of its highest, where the kernel tells it."""

class ExecReport(Report):
    """About a command beside a task."""
    id: Unsigned

class ExecStarted(ExecReport): ...

class ExecFailed(ExecReport):
    """The command could not be started."""
    error: Text

class ExecEnded(ExecReport):
    exit_code: Unsigned | None
    """The exit code; None where a signal ended the command."""
    signal: Unsigned | None = None
    task_has_ended: bool = False
    """True if the agent has ended the command because its task was over."""

class LogLost(TaskMessage, Event):
    bytes: Unsigned
    reason: Text

class FilesLost(Report):
    """No question in progress will be answered."""
    error: Text

class Wants(FileReport):
    digests: list[Text]

class Took(FileReport):
    digest: Text
    at: Unsigned

class Received(FileReport): ...

class Scanned(FileReport):
    entries: list[Entry]
    more: bool = False
    left_off: bool = False
    """True if there are more entries than may be listed."""

class ReadEnd(FileReport):
    sha512: Text
    is_unchanged: bool

class MarkedFolder(FileReport):
    folder: Path | None

class FileFailed(FileReport):
    """The order could not be carried out."""
    error: Text

class StillWorking(FileReport):
    """A long order makes progress."""

class LostRunEnded(Part):
    """The answer of `agent.fencing.end_lost_run`."""
    is_exact = True
    ended: list[NodeName]
    stays: list[NodeName]
    is_proved: bool
    folder: Path | None

# -- reports of a task ----------------------------------------------------------------------

class WaitingForPeers(TaskReport): ...

class TaskPhase(TaskReport, Event):
    """The phase of a task before its first step, which can take minutes."""
    name: Name
    """``importing TensorFlow``, ``importing JAX``, ``importing torch``, ``waiting for peers``, or
    empty once such a phase is over."""
    waits_for_peers: bool | None = None
    """True if its strategy waits for all its tasks."""

class TaskDevices(TaskReport, Event):
    """TensorFlow has initialised its devices in the task."""
    devices: list[Name]
    """``CPU``, ``GPU NVIDIA H200``, one item per device."""

class TaskReady(TaskReport, Event):
    """The task has joined the cluster, or begun to train."""

class UnusedGpus(TaskReport):
    """The task trains on the CPU of a machine on which nvidia-smi lists GPUs."""
    count: Unsigned

class MeetsPeers(TaskReport):
    """The task knows other tasks: by a strategy, a resolver, a server or a collective."""

class Reduces(TaskReport):
    """The task has summed a value over all workers."""

class Trains(TaskReport):
    """The task has computed a gradient; `way` is explained in `supervision.alerts`."""
    way: Text = ""

class Restored(TaskReport):
    """All that the task has restored before its first step."""
    names: list[Name]

class FirstBatches(TaskReport):
    """Fingerprints of the first batches that the task trains on."""
    fingerprints: list[Name]

class Sharded(TaskReport):
    """The script has taken one shard of a dataset that TensorFlow shards again."""
    shards: Unsigned
    index: Unsigned

class Weights(TaskReport):
    """The weights that the task trains are NaN or infinite, or are numbers again."""
    metrics: Metrics
    """Their sum as `alerts.WEIGHTS`, as far as it matters: NaN, infinity, or 0."""
    step: Step | None = None

class Serving(TaskReport): ...
class SavesOnSigterm(TaskReport):
    is_over: bool = False
    """The task did, and no longer does."""

class SearchEnded(TaskReport): ...
class Alive(TaskReport): ...

class Saved(TaskReport):
    path: LongText
    step: Step | None = None
    at_ns: Integer | None = None
    load: LoadCall | None = None
    """Python that loads it, with `{path}` for the path."""

class SavedElsewhere(TaskReport):
    step: Step | None = None

class SavedModel(TaskReport):
    """The newest model that the task leaves outside its checkpoint directory at its end."""
    path: LongText

class WrittenFile(Part):
    path: LongText
    file: Name
    """An id that two tasks share if they write the same file, on any machine."""

class Wrote(TaskReport):
    """Files that the task has opened for writing."""
    files: list[WrittenFile]

class Evaluated(TaskReport):
    step: Step | None = None
    metric: Name | None = None
    """The metric that decides which checkpoint is the best, if there is one."""
    value: Real | None = None
    lower_is_better: bool = True
    follows: bool = False
    """True if the task waits for further checkpoints until it is ended."""

class Progress(TaskReport, Event):
    step: Step
    epoch: Step | None = None
    """The current epoch, from 1."""
    epochs: Step | None = None
    """The number of epochs of the whole training, where it is known."""
    steps_per_epoch: Step | None = None
    total_steps: Step | None = None
    """The step at which the training will be over, where it is known."""
    steps_per_execution: Step | None = None
    """The steps of one call of the training function, if these are several."""
    metrics: Metrics = EMPTY
    steps_per_second: float | None = None
    """The speed over the last 5 seconds and 5 steps at least, including evaluations, saves and
    pauses. Of tasks that take their steps together only the leading one has a speed."""
    mean_steps_per_second: float | None = None
    """The speed since the attempt's first step."""
    examples_per_second: float | None = None
    mean_examples_per_second: float | None = None

class StepEnds(TaskReport, Event):
    """The ends of `steps` on CLOCK_MONOTONIC, and the processor time; for `tfcluster scale`."""
    steps: list[Step]
    times: list[Real]
    cpu_s: float = 0.0
    gradient_bytes: Unsigned | None = None
    """The gradients that each step sums over all tasks."""

class StepParts(TaskReport):
    """The seconds of each part of a task's latest steps.

    Each list has a value for each entry: one step, or a few short ones. Evaluations do not count.
    """
    after: Step
    """The step before the first entry."""
    steps: list[Step]
    """The last step of each entry."""
    seconds: list[Real]
    """The whole time: what the other lists leave is Python's, outside of functions."""
    input_s: list[Real]
    compute_s: list[Real]
    collective_s: list[Real]
    callbacks_s: list[Real]
    reduced_bytes: Unsigned = 0
    """The bytes that the task has given to collectives in all entries."""

class Profiled(TaskReport):
    """The task has written the trace that a `TraceSteps` has asked for, or cannot."""
    id: Name
    first: Step | None = None
    """The first step of the trace; None of a task that takes no steps."""
    last: Step | None = None
    seconds: Real = 0.0
    problem: Line = ""
    """The reason why there is no trace."""

class AllReduce(TaskReport):
    """The time of one all-reduce between `workers`, for ``tfcluster doctor --deep``."""
    communication: Name
    workers: list[Name]
    seconds: float

class Verdict(TaskReport):
    """The job has failed whatever its exit code is."""
    reason: Line

class SettingRead(TaskReport):
    name: Name

class Note(TaskReport):
    message: Line

class TaskError(TaskReport, Event):
    """An uncaught Python exception, reported by the task itself."""
    exception: Name
    message: LongText
    file: LongText | None = None
    line: Integer | None = None
    traceback: Traceback = ""
    child_code: Integer | None = None
    """The exit code of the child process that failed, negative for a signal: CalledProcessError."""
    cause: Name | None = None
    """The name of the cause (`supervision.known_errors`), where tfcluster's own hooks know it."""

class Doubt(TaskReport):
    """A reason to doubt an end with exit code 0; `supervision.doubts` explains `about`."""
    about: Name
    exception: Name | None = None
    """An exception that the script has caught, or Python has ignored."""
    message: LongText = ""
    file: LongText | None = None
    line: Integer | None = None

class DoubtOver(TaskReport):
    """An earlier `Doubt` about the same does not count any more."""
    about: Name

class ChaosInjected(TaskReport, Event):
    """A fault was injected (``up --chaos``), maybe into another task than the reporting one."""
    fault: Name
    """The fault as the user wrote it: ``kill worker:1 at step 50``."""
    task: Name = ""
    step: Step | None = None

class TrainsInChild(TaskReport):
    """The task seems to train in a child that has no hooks, and so reports nothing."""
    command: Line

class Trial(TaskReport, Event):
    """A trial of a search, reported by `task`: the chief's oracle or the tuner that ran it."""
    id: Name
    status: Name | None = None
    """KerasTuner's status: RUNNING, COMPLETED, INVALID (to be tried again) or FAILED."""
    tuner: Name | None = None
    """The task that runs the trial."""
    score: Real | None = None
    best_step: Step | None = None
    """The epoch of the score, from 0."""
    objective: Name | None = None
    direction: Name | None = None
    """`min` or `max`."""
    values: Values | None = None
    """The hyperparameters."""
    message: Line | None = None
    """The end of the traceback of a failed trial."""

class TrialEnded(TaskReport):
    id: Name
    message: Line | None = None

FOR_PEOPLE = (
    *(Alive, TaskDevices, UnusedGpus, TaskPhase, Progress, StepEnds, StepParts, Note),
    *(TrainsInChild, Trial, TrialEnded, Wrote, Profiled),
)
"""Reports on which the run does not depend."""
