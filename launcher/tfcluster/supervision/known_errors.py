"""Known error messages of TensorFlow, Keras and Python, each with a hint and a link to its page.

Numbers in comments are issues of tensorflow/tensorflow unless another project is named. Every row
has a section in ``docs/failures.md``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from tfcluster.supervision.keras_errors import KERAS_2_SCRIPT, OLD_KERAS
from tfcluster.supervision.log_errors import MISSED_HEARTBEAT, NEVER_JOINED

PERMANENT: Final = "permanent"
PORT_TAKEN: Final = "port_taken"

TF1_SCRIPT: Final = (
    r"module 'tensorflow' has no attribute '(?:app|flags|logging|contrib|gfile|layers"
    r"|placeholder\w*|Session|InteractiveSession|ConfigProto|GPUOptions|get_variable|variable_scope"
    r"|global_variables_initializer|get_default_graph|reset_default_graph|GraphKeys|set_random_seed"
    r"|enable_eager_execution|disable_eager_execution|disable_v2_behavior|parse_single_example"
    r"|decode_raw|to_float|to_int32|to_int64|log|div|FixedLenFeature|TFRecordReader|python_io)'"
    r"|module '[\w.]*(?:tensorflow[\w.]*|_api\.v2)\.train' has no attribute '(?:\w+Optimizer|Saver"
    r"|Server|MonitoredTrainingSession|MonitoredSession|Supervisor|replica_device_setter|\w+Hook"
    r"|get_or_create_global_step|get_global_step|string_input_producer|(?:shuffle_)?batch)'"
    r"|No module named 'tensorflow\.(?:contrib|examples)\b"
)
"""Names of TensorFlow 1 that TensorFlow 2 has only in ``compat.v1``, or not at all."""


@dataclass(frozen=True, slots=True)
class KnownError:
    """A known failure: how to recognize it, and what the user can do."""

    anchor: str
    """Anchor of its section in ``docs/failures.md``."""
    hint: str
    """The fix in one sentence."""
    pattern: str = ""
    """Regular expression for the message; empty where only the circumstance identifies it."""
    kind: str | None = None
    """The kind of the failure (`failure.Kind`), where the message decides it."""
    is_root_cause: bool = False
    """A cause even where TensorFlow reports it as the consequence of another task's end."""
    is_logged: bool = False
    """True if the log is searched too: it is written while the task waits, not when it ends."""
    is_traced: bool = False
    """The pattern applies to the traceback, because the message alone is not specific."""
    is_keras_3_only: bool = False
    """True if only Keras 3 fails like this: the hint differs where the spec asks for Keras 3."""
    is_unpatched_keras_3: bool = False
    """True if a patched Keras 3 does not fail like this: the hint says why it was not patched."""

    @property
    def docs(self) -> str:
        return f"docs/failures.md#{self.anchor}"

    def matches(self, text: str) -> bool:
        return bool(self.pattern and re.search(self.pattern, text, re.MULTILINE))


_permanent: Final = functools.partial(KnownError, kind=PERMANENT)
_permanent_cause: Final = functools.partial(_permanent, is_root_cause=True)

LOST_PODS: tuple[KnownError, ...] = (
    KnownError(
        "pod-out-of-memory",
        "raise limits memory in runtime.kubernetes.resources, or use smaller batches and shuffle"
        " buffers",
        r"\bits pod \S+ is lost \(failure\): .*OOMKilled",
        kind="out_of_memory",
    ),
    KnownError(
        "pod-preempted",
        "the cluster gave its place to another pod, drained its node, or somebody deleted it;"
        " runtime.kubernetes.priority_class decides which pods may be preempted",
        r"\bits pod \S+ is lost \(preemption\)",
        kind="preempted",
    ),
    KnownError(
        "pod-permanent",
        "another pod would end the same way: correct what the message names; `kubectl describe"
        " pod` shows all of it",
        r"\bits pod \S+ is lost \(permanent\)",
        kind=PERMANENT,
    ),
    KnownError(
        "pod-lost",
        "the cluster lost the pod: `kubectl get events` and `kubectl get nodes` show more",
        r"\bits pod \S+ is lost \(",
    ),
)
"""The ends of pods, by the class that `backends.kubernetes.pod_reasons` writes into the reason."""
OWN_END: Final = r"\bits pod \S+ is lost \((?:failure|permanent)\)"
"""The reason of a pod that its own job or spec has ended: another one may end the same way."""
SILENT_NODE: Final = r"is lost \(infrastructure\): its node [^:]*(?:does|did) not answer"
"""The reason of a pod whose node was lost when it was deleted."""

MESSAGES: tuple[KnownError, ...] = (
    *LOST_PODS,
    KnownError(
        "container-lost",
        "a user or a docker daemon that exited did this: see `docker events` and the daemon's log",
        r"\bits container \S+ (?:was killed \(|is paused|has been removed|ended with)",
    ),
    _permanent(
        "configured-at-startup",  # 34568, 30551, 55178
        "create the MultiWorkerMirroredStrategy before any other TensorFlow operation",
        r"Collective ops must be configured at program startup",
    ),
    KnownError(
        "port-taken",  # 46602, 23434
        "another process uses the port; let tfcluster choose the ports (port 0)",
        # grpc++ for TensorFlow, grpcio for KerasTuner's chief
        r"Could not start gRPC server|Failed to bind to address",
        kind=PORT_TAKEN,
    ),
    KnownError(
        "own-port-taken",
        "a port that the script opens is in use: if every task of a host starts a dashboard or"
        " metrics server, give each task another port",
        r"\[Errno (?:98|48)\]|[Aa]ddress already in use|EADDRINUSE",
    ),
    _permanent_cause(
        "keras-3",  # 72388, keras 20585, ray 47464
        "Keras 3 fails on several workers (keras#20585), and it was not patched here",
        r"Invalid reduction dimension 0|convert a value \((?:\{.*)?PerReplica",
        is_unpatched_keras_3=True,
    ),
    _permanent(
        "keras-3-parameter-server",
        "Keras 3's `fit` does not support parameter servers: use Keras 2 (`import tf_keras as"
        " keras`) or a custom training loop like jobs/parameter_server.py",
        r"you need to pass this dataset to ClusterCoordinator\.create_per_worker_dataset",
        is_keras_3_only=True,
    ),
    _permanent_cause(
        "keras-3-refused",
        "tfcluster's patch of Keras 3 does not cover this; the message says what to do",
        r"Keras3Error|cannot be patched for several workers",
    ),
    _permanent(
        "old-keras",
        "the script uses a name that Keras removed before 2.15: the page lists the replacements",
        OLD_KERAS,
    ),
    _permanent(
        "keras-2-script",
        "the script is written for Keras 2: --set keras.version=2 runs it with tf_keras; replace"
        " `import keras` with `import tf_keras as keras`",
        KERAS_2_SCRIPT,
        is_keras_3_only=True,
    ),
    _permanent(
        "estimator-removed",  # 76349
        "TensorFlow 2.15 was the last release with Estimator: choose a Python that has it with"
        " --python",
        r"has no attribute 'estimator'|No module named '?tensorflow_estimator"
        r"|cannot import name 'estimator_training'|ESTIMATOR_API_NAME",
    ),
    _permanent(
        "estimator-eager",  # 46556, 45918
        "Estimator with a strategy needs `tf.compat.v1.disable_eager_execution()` first",
        r"cannot pickle '_thread\.R?[Ll]ock' object"
        r"|MultiWorkerMirroredStrategy cannot be deep copied in eager mode",
    ),
    _permanent_cause(
        "file-shard",  # 36846, 35878
        "the dataset has fewer files than workers: use the DATA auto-shard policy",
        r"FILE based sharding|aren't enough elements in this dataset",
    ),
    _permanent(
        "tf-keras-missing",
        "install the tf-keras of TensorFlow's minor version (tf-keras 2.21 for TensorFlow 2.21)",
        r"do not have the tf_keras package|No module named 'tf_keras'",
    ),
    _permanent(
        "tensorboard-missing",
        "TensorFlow no longer installs TensorBoard: install tensorboard, or remove its callback",
        r"TBNotInstalledError|TensorBoard is not installed|No module named 'tensorboard'",
    ),
    _permanent(
        "versions",
        "incompatible packages: reinstall TensorFlow with its own requirements",
        r"Descriptors cannot (?:not )?be created directly|undefined symbol"
        r"|version `?GLIBC\w*_[\d.]+'? not found|numpy\.core\.multiarray failed to import"
        r"|numpy\.dtype size changed",
    ),
    _permanent(
        "tf1-script",
        "the script is written for TensorFlow 1, and TensorFlow 2 does not have this name: write"
        " `import tensorflow.compat.v1 as tf` where compat.v1 has it; the page lists the others",
        TF1_SCRIPT,
    ),
    _permanent(
        "import-error",
        "install it for the Python that the start panel names, or choose another with --python",
        r"^(?:ModuleNotFoundError|ImportError)\b",
    ),
    _permanent(
        "syntax-error",
        "Python cannot parse the file; the tasks' Python may be older than yours",
        r"^(?:SyntaxError|IndentationError|TabError)\b",
    ),
    _permanent(
        "script-missing",
        "`script` is relative to `workdir`; files that git ignores are not copied to other hosts",
        r"can't open file '.*': \[Errno 2\]",
    ),
    _permanent_cause(
        "tf-config",
        "create the resolver, the server or the strategy from the TF_CONFIG that tfcluster sets:"
        " tf.distribute.cluster_resolver.TFConfigClusterResolver()",
        r"ClusterChangedError: the (?:strategy's cluster resolver|script makes a server)",
    ),
    _permanent_cause(
        "tf-config",
        "keep the TF_CONFIG that tfcluster sets: delete the lines that change it, or put"
        ' `if "TF_CONFIG" not in os.environ:` before them; if each task should train alone,'
        " --set job.kind=plain",
        r"^tfcluster_workers\.errors\.ClusterChangedError",
    ),
    _permanent(
        "tf-config",  # 31969, 62759
        "the script, or something it imports, changes TF_CONFIG: read it, but do not change it",
        r"(?s)TF_CONFIG.*JSONDecodeError|tfconfig_cluster_resolver\.py.*JSONDecodeError",
        is_traced=True,
    ),
    _permanent(
        "tf-config",
        "TF_CONFIG is not what TensorFlow expects: `tfcluster env` shows it",
        r"Disallowed task type found in cluster spec|not found in cluster_spec"
        r"|There must be at most one '\w+' job|exceeds the maximum id of"
        r"|must have one \"chief\" node|^KeyError: 'evaluator'"
        r"|Could not parse port for local server|as a host-port pair|was not defined in cluster",
    ),
    _permanent(
        "kerastuner",
        '`"kind": "tuner"` sets them; otherwise set all three in each task\'s `env`, or none:'
        " those of your shell are not passed on",
        r"KERASTUNER_(?:ORACLE_IP|ORACLE_PORT|TUNER_ID)",
    ),
    _permanent_cause(
        "chief-alone",
        "all workers must train the same number of steps, and save, evaluate and predict together:"
        " move these calls out of `if index == 0:`; workers other than the chief save into a"
        " folder of their own",
        r"did alone what all workers must do"
        r"|Collective instance \d+ expected type \d+ and data_type",
    ),
    _permanent_cause(
        "hosts-differ",  # 47203, 60847, 34156
        "the tasks differ: give each the same number of GPUs of one type, the same versions and"
        " the same script",
        r"is joining a group with size|but that group has size|incompatible device type"
        r"|Shape mismatch in the collective instance",
    ),
    KnownError(
        "uneven-batches",  # 33086, 36153, 25254
        "one worker ran out of data before the others: repeat() the dataset and set"
        " steps_per_epoch, with drop_remainder=True",
        r"OutOfRangeError(?s:.){0,20000}End of sequence"
        r"|aborted by: (?:\[_Derived_\])?\s*End of sequence",
        is_root_cause=True,
    ),
    KnownError(
        "memory",
        "the machine's memory is full: use fewer tasks on it, smaller batches, a smaller shuffle"
        " buffer, or no cache() in memory",
        r"^(?:\S+\.)?_?(?:Array)?MemoryError\b|std::bad_alloc|Cannot allocate memory"
        r"|OOM when allocating tensor.*device:CPU",
    ),
    KnownError(
        "gpu-memory",
        "the GPU's memory is full: use smaller batches, one task per GPU, or"
        " TF_FORCE_GPU_ALLOW_GROWTH=true where tasks share one",
        r"CUDA_ERROR_OUT_OF_MEMORY|ResourceExhaustedError|OOM when allocating tensor",
    ),
    KnownError(
        "download-race",  # datasets 1302
        'tasks of one host downloaded the same data at once: download it in `"prepare"`, which'
        " runs once per host",
        r"NonMatchingChecksumError|Incomplete or corrupted file detected"
        r"|\.incomplete\b|tensorflow_datasets/downloads(?!/manual)|/downloads/extracted/",
    ),
    _permanent(
        "shared-file",
        "two tasks write this file at once: write it only in the first worker, or one file per"
        " task below $TFCLUSTER_CHECKPOINT_DIR",
        r"unable to lock file, errno = 11",
    ),
    KnownError(
        "shared-file",
        "two tasks may have saved into this folder at once: use one folder per task below"
        " $TFCLUSTER_CHECKPOINT_DIR",
        r"_temp/part-\d+-of-\d+\S*; No such file or directory",
    ),
    _permanent_cause(
        "damaged-data",
        "a file of the dataset is damaged: remove the dataset's folder, and the next run prepares"
        " it again",
        r"DataLossError(?s:.){0,2000}(?:corrupted|truncated) record at"
        r"|^(?:corrupted|truncated) record at",
    ),
    KnownError(
        "name-lookup",
        'a host name was not found: with `"network": "private"` tasks have no outside network, so'
        " download in `prepare`, which has one; otherwise check the names in `cluster`",
        r"Temporary failure in name resolution|Name or service not known"
        r"|nodename nor servname provided|No address associated with hostname"
        r"|Could not resolve host|[Ff]ailed to resolve '|DNS resolution failed",
    ),
    KnownError(
        "disk-full",
        "the disk is full; `tfcluster prune` removes old runs",
        r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded|ENOSPC",
    ),
    KnownError(
        "incarnation",  # automl 964
        "a task of an earlier start still listens on this address, or one was restarted by hand:"
        " stop it, or let tfcluster choose the ports (port 0)",
        r"unexpectedly tried to connect|incarnation doesn't match",
        is_root_cause=True,
    ),
    KnownError(
        "nccl",
        "NCCL could not connect the GPUs: set the interface with NCCL_SOCKET_IFNAME;"
        " NCCL_DEBUG=INFO shows details",
        r"ncclInternalError|ncclSystemError|ncclUnhandledCudaError|unhandled system error"
        r"|Duplicate GPU detected",
    ),
    KnownError(
        "proxy",  # 24887, 50626, grpc 9989
        "gRPC uses a proxy: unset grpc_proxy, https_proxy and http_proxy for the tasks",
        r"scheme not supported in proxy URI",
        is_logged=True,
    ),
    KnownError(
        "peer-never-came",  # 60706, 98217
        "a peer did not join while TensorFlow waited: the log of the missing task says why",
        NEVER_JOINED,
    ),
    KnownError(
        "heartbeat",  # 42498, 58434
        "a task sent no heartbeat for 10 s, TensorFlow's limit: its process was stopped or its"
        " machine swapped, slept or lost its network",
        MISSED_HEARTBEAT,
    ),
)
