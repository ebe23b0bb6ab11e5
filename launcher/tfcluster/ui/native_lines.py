"""Recognizes lines that views omit: those that TensorFlow's native code writes at each start, and
stacks that tfcluster has asked for.

TensorFlow, absl, XLA, CUDA's libraries and gRPC write 20 to 40 lines per task before a script's
first. Such a line has one of two forms, comes from a source file in `TABLE` and begins with a text
given there; lines that continue it follow. Every other line is shown: one of another form, of an
unknown source file (a custom op), an unknown text of a known file. Errors that may matter are not
in the table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

_FORM = re.compile(
    rb"(?:([IWE])\d{4} \d\d:\d\d:\d+\.\d+ +\d+ "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWE]) (?:tensorflow|external|xla|tsl)/)"
    rb"(?:[\w.-]+/)*(\w+\.(?:cc|h)):\d+\] *"
)
"""absl's form, which gRPC has too (``I0000 00:00:1795436651.77 26030 port.cc:153] ``), and the one
of TensorFlow itself until 2.20 (``2026-11-23 12:23:46.9: I tensorflow/core/util/port.cc:113] ``).
"""
_FORM_INSIDE = re.compile(rb"(?<=[^\n])(?=%s)" % _FORM.pattern)
_find_mark = re.compile(
    rb":(?:\d+\] |:InitializeLog|tensorflow:From )|\[Gloo\] Rank |\(most recent call first"
    rb"|Fatal Python error"
).search
"""Finds what the first line of each message holds; a log without it costs 30 ns per line."""
_STACK = re.compile(rb"(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_STACK_LINE = re.compile(
    rb'  (?:File ".*", line \d+ in .*|<no Python frame>|Garbage-collecting|\.\.\.)|'
)
"""The lines of one thread's stack, as `faulthandler` writes them (Python/traceback.c)."""
_CRASH = b"Fatal Python error"
"""The beginning of a crash's line: its stacks stay, as they explain the end of the task."""
_OPTIONS = (
    rb"(?:device_count|session_inter_op_thread_pool|(?:gpu|pluggable_device|graph|rpc)_options"
    rb"|cluster_def|experimental) \{|(?:  )*\}|(?:  )+\w+(?:: \S+| \{)"
    rb"|(?:allow_soft_placement|log_device_placement|isolate_session_state"
    rb"|share_cluster_devices_in_session|use_per_session_threads): true"
    rb"|(?:(?:intra|inter)_op_parallelism_threads|placement_period|operation_timeout_in_ms): -?\d+"
)
"""A line of a ConfigProto, without those of its first level that hold a text."""
_SERVICE_OPTIONS = rb'(?:port|protocol|\w+_(?:dir|mode|ms|address|bytes|snapshots)): (?:\w+|".*")'
"""A line of the configuration of a tf.data service's server."""
_ADVICE = (
    rb"(?:Please )?(?:[Uu]se|[Pp]refer|[Ss]witch to|Track) (?=.*(?:`|\btf\.| instead)).+"
    rb"|\w+ is deprecated, use \w+ instead"
)
"""The line after ``Instructions for updating:``, where it names a replacement."""
_FROM_TENSORFLOW = (
    rb"WARNING:tensorflow:From (?=\S*/(?:(?:site|dist)-packages/(?:tensorflow\w*|keras|tf_keras)"
    rb"|workers/tfcluster_workers/jobs)/)(?>\S+) "
)
"""A caller that is TensorFlow, Keras or an example job: a user's script can change nothing."""


@dataclass(frozen=True, slots=True)
class KnownLine:
    """A message of native code: its source files, its levels, how its text begins, its lines."""

    files: str
    """Names without folders, which newer releases do not write; "" for a line without a form."""
    text: bytes
    levels: bytes = b"I"
    more: bytes | None = None
    """A pattern of the whole lines that may follow."""
    last: bytes | None = None
    """A pattern of the whole line that ends the message after at least one line of `more`."""


TABLE: Mapping[str, tuple[KnownLine, ...]] = {
    "the build and the processor": (
        KnownLine("port.cc", rb"oneDNN custom operations are on\. "),
        KnownLine(
            "cpu_feature_guard.cc",
            rb"This TensorFlow binary is optimized to use available CPU instructions",
            more=rb"To enable the following instructions: .* appropriate compiler flags\.",
        ),
        KnownLine("py_utils.cc", rb"TF-TRT Warning: Could not find TensorRT", b"W"),
        KnownLine("mlir_graph_optimization_pass.cc", rb"MLIR V1 optimization pass is not enabled"),
        KnownLine("dump_mlir_util.cc", rb"disabling MLIR crash reproducer, set env var"),
        KnownLine(
            "cuda_dnn.cc cuda_fft.cc cuda_blas.cc",
            rb"Unable to register cu\w+ factory: Attempting to register factory for plugin cu\w+"
            rb" when one has already been registered",
            b"E",
        ),
        KnownLine("computation_placer.cc", rb"computation placer already registered\. ", b"WE"),
    ),
    "no GPU": (
        KnownLine("cudart_stub.cc", rb"Could not find cuda drivers on your machine, GPU will not"),
        KnownLine(
            "cuda_driver.cc cuda_platform.cc",
            rb"failed call to cuInit: (?:INTERNAL: CUDA error: Failed call to cuInit: )?"
            rb"(?:CUDA_ERROR_NO_DEVICE: |UNKNOWN ERROR \(303\))",  # no library, no device
            b"EW",
        ),
        KnownLine(
            "cuda_diagnostics.cc",
            rb"kernel driver does not appear to be running on this host"
            rb"|retrieving CUDA diagnostic information for host: |hostname: |env: CUDA_"
            rb"|(?:libcuda|kernel) reported version is: |kernel version seems to match DSO: "
            rb"|CUDA_VISIBLE_DEVICES is set to |verbose logging is disabled\. ",
        ),
    ),
    "a GPU": (
        KnownLine("cuda_executor.cc", rb"successful NUMA node read from SysFS had negative value"),
        KnownLine(
            "cuda_executor.cc",
            rb"could not open file to read NUMA node: ",
            more=rb"Your kernel may have been built without NUMA support\.",
        ),
        KnownLine("gpu_device.cc", rb"Created device \S+/device:GPU:\d+ with \d+ MB memory: "),
        KnownLine("gpu_bfc_allocator.cc", rb"Overriding orig_value setting because the TF_", b"W"),
        KnownLine(
            "service.cc",
            rb"XLA service 0x[0-9a-f]+ initialized for platform |StreamExecutor (?:device )?[(\[]",
        ),
        KnownLine("cuda_dnn.cc", rb"Loaded cuDNN version \d+"),
        KnownLine("device_compiler.h", rb"Compiled cluster using XLA!"),
    ),
    "the cluster": (
        KnownLine("grpc_server_lib.cc", rb"Started server with target: "),
        KnownLine(
            "coordination_service.cc coordination_service.h",
            rb"Initializing CoordinationService|Waiting for \d+/\d+ tasks to connect\."
            rb"|/job:\S+ has (?:dis)?connected (?:to|from) coordination service\."
            rb"|Barrier\(\S+\) has passed with status: OK$",
        ),
        KnownLine("coordination_service.cc", rb"Example stragglers:", more=rb"/job:\w+/\S+:\d+"),
        KnownLine(
            "coordination_service_agent.cc",
            rb"Coordination agent has (?:successfully connected|initiated Shutdown"
            rb"|successfully shut down)",
        ),
        KnownLine("master.cc", rb"Scanning workers for devices: "),
        KnownLine("dtensor_device.cc", rb"DTensor cache key lookup missed for "),
        KnownLine("eager_service_impl.cc", rb"Creating a?sync eager service context with "),
        KnownLine("eager_service_impl.cc", rb"SessionOptions: ", more=_OPTIONS, last=b""),
        KnownLine(
            "kernel_and_device.cc",
            rb"Ignoring error status when releasing multi-device function handle UNIMPLEMENTED: ",
        ),
        KnownLine("local_rendezvous.cc", rb"Local rendezvous is .*: ABORTED: Cleanup -?\d+", b"IW"),
    ),
    "the input": (
        KnownLine("replicate_on_split.cc", rb"Running replicate on split optimization"),
        KnownLine("generator_dataset_op.cc", rb"Memory patch applied: M_TRIM_THRESHOLD="),
        KnownLine("dataset.cc", rb"Input of \w+::Dataset will not be optimized because", b"W"),
        KnownLine(
            "tf_record_dataset_op.cc", rb"The default buffer size is \d+, which is overridden"
        ),
        KnownLine(
            "local_rendezvous.cc",
            rb"Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence",
            b"IW",
            more=rb"\t \[\[.*\]\].*",
        ),
        KnownLine(
            "local_rendezvous.cc",  # `fit` has done its steps, and drops the rest of the data
            rb"Local rendezvous is aborting with status: CANCELLED: GetNextFromShard was cancelled",
            b"IW",
            more=rb"\t \[\[.*\]\].*",
        ),
    ),
    "the tf.data service": (
        KnownLine("server_lib.cc", rb"Started tf\.data \w+Server running at "),
        KnownLine(
            "worker_impl.cc",
            rb"Worker registered with dispatcher running at ",
            more=_SERVICE_OPTIONS,
            last=b"",
        ),
        KnownLine(
            "dispatcher_impl.cc",
            rb"Started tf\.data service dispatcher with config: ",
            more=_SERVICE_OPTIONS,
            last=b"",
        ),
        KnownLine(
            "dispatcher_impl.cc",
            rb"Attempting to restore dispatcher state from journal in "
            rb"|No journal found\. Starting dispatcher from new state\."
            rb"|Restored from journal in ",
        ),
        KnownLine("dispatcher_impl.cc", rb".{1,200} tf\.data service AutoScaler: ", b"W"),
        KnownLine(  # the wait grows: 1 s or more means that the dispatcher is not merely late
            "grpc_util.cc",
            rb"Failed to Worker heartbeat\.: UNAVAILABLE: .{1,400} Will retry in \d{1,3}ms\.$",
        ),
    ),
    "the profiler": (
        KnownLine(
            "profiler_session.cc",
            rb"Profiler session (?:initializing|started|collecting data|tear down)\.",
        ),
        KnownLine("save_profile.cc", rb"Collecting XSpace to repository: "),
    ),
    "gRPC": (
        KnownLine("fork_posix.cc", rb"Other threads are currently calling into gRPC, ", b"IWE"),
        KnownLine("ev_poll_posix.cc ev_epoll1_linux.cc", rb"FD from fork parent still in ", b"IWE"),
    ),
    "Gloo, which connects JAX's processes on CPUs": (
        KnownLine(
            "",
            rb"\[Gloo\] Rank \d+ is connected to (\d+) peer ranks\."
            rb" Expected number of connected peer ranks is : \1$",
        ),
    ),
    "absl's banner": (
        KnownLine(
            "",
            rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to"
            rb" STDERR$",
        ),
    ),
    "TensorFlow's own use of what it deprecates": (
        KnownLine(
            "",
            _FROM_TENSORFLOW + rb".{1,300} is deprecated and will be removed (?:after|in) ",
            more=rb"Instructions for updating:",
            last=_ADVICE,
        ),
        KnownLine(
            "",
            _FROM_TENSORFLOW + rb"The name \S+ is deprecated\. Please use \S+ instead\.$",
            more=rb"",
        ),
    ),
}
"""The messages by subject; `tests/launcher/ui/native` has them as they were logged."""


def _by_file() -> Mapping[bytes, Sequence[KnownLine]]:
    messages = defaultdict(list)
    for message in chain(*TABLE.values()):
        for name in message.files.split() or [""]:
            messages[name.encode()].append(message)
    return messages


_BY_FILE = _by_file()


def find_message(line: bytes) -> KnownLine | None:
    """Return the message that `line` (without its newline) begins, or None: an unknown line."""
    form = _FORM.match(line)
    level, file, text = b"I", b"", line
    if form is not None:
        level, file, text = form[1] or form[2], form[3], line[form.end() :]
    for message in _BY_FILE.get(file, ()):
        if level in message.levels and re.match(message.text, text):
            return message
    return None


def split_native(block: bytes) -> bytes:
    """Return `block` with each native message on a line of its own, also after a progress bar."""
    return _FORM_INSIDE.sub(b"\n", block)


def has_native_form(line: bytes, *, level: bytes = b"") -> bool:
    """Return whether native code wrote `line` (without its newline), at `level` (I, W, E) if given.

    Fatal errors (F) have another form.
    """
    form = _FORM.match(line)
    return form is not None and level in (b"", form[1] or form[2])


class NativeFilter:
    """Drops the known native messages from one log, which comes in blocks of whole lines."""

    def __init__(self) -> None:
        self.dropped = 0
        """The number of lines dropped so far."""
        self._message: KnownLine | None = None
        """The message that the next line may continue."""
        self._has_more = False
        self._is_open = False
        """True while the last line is inside a block of braces, whose lines may follow."""
        self._is_stack = self._has_crashed = False

    def __call__(self, block: bytes) -> bytes:
        """Return the lines of `block` that are not native noise."""
        if self._message is None and not self._is_stack and not _find_mark(block):
            return block
        lines = block[:-1].split(b"\n")
        kept = [line + b"\n" for line in lines if not self._drops(line)]
        self.dropped += len(lines) - len(kept)
        return b"".join(kept)

    def interrupt(self) -> None:
        """Expect no more lines of the last message: others were not seen."""
        self._message, self._is_stack = None, False

    def _drops(self, line: bytes) -> bool:
        if self._is_stack and _STACK_LINE.fullmatch(line):
            return True
        self._has_crashed |= line.startswith(_CRASH)
        self._is_stack = _STACK.search(line) is not None and not self._has_crashed
        return self._is_stack or self._drops_native(line)

    def _drops_native(self, line: bytes) -> bool:
        """Return whether `line` begins or continues a known message."""
        if self._message is not None and self._continues(self._message, line):
            return True
        self._message = find_message(line) if _find_mark(line) else None
        self._has_more = False
        self._is_open = line.endswith(b"{")
        return self._message is not None

    def _continues(self, message: KnownLine, line: bytes) -> bool:
        """Return whether `line` is a further line of `message`, or its last one.

        Lines inside of braces are indented; others end the block.
        """
        is_inner = line.startswith((b"  ", b"}"))
        if message.more is not None and re.fullmatch(message.more, line):
            if is_inner != self._is_open:
                return False
            self._has_more = True
            self._is_open = line.endswith(b"{") or line.startswith(b"  ")
            return True
        if self._has_more and message.last is not None and re.fullmatch(message.last, line):
            self._message = None
            return True
        return False
