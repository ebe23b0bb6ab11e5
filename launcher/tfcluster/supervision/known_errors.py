"""Messages users meet again and again, each with its cure and the place that explains it.

Numbers are issues of tensorflow/tensorflow unless another project is named. Every row has a
section in ``docs/failures.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tfcluster.supervision.keras_errors import KERAS_2_SCRIPT, OLD_KERAS

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
"""What TensorFlow 1 had at these places: TensorFlow 2 has it in ``compat.v1``, or nowhere."""


@dataclass(frozen=True, slots=True)
class Known:
    """A failure with a cure."""

    anchor: str
    """Of its section in ``docs/failures.md``."""
    hint: str
    pattern: str = ""
    """Of its message; empty for what is known by its circumstance alone."""
    kind: str | None = None
    """``permanent`` or ``port_taken``, where the message decides what kind of failure it is."""
    is_own: bool = False
    """It is a cause even where TensorFlow wraps it as the consequence of another task's end."""
    is_logged: bool = False
    """It is said in the log while a task still waits, and not by what it ends with."""
    is_traced: bool = False
    """The pattern is of the traceback: the message alone does not tell."""
    is_of_keras_3: bool = False
    """Keras 2 does not fail so: where the spec asks for Keras 3, the fix is not to."""

    @property
    def docs(self) -> str:
        return f"docs/failures.md#{self.anchor}"

    def matches(self, said: str) -> bool:
        return bool(self.pattern and re.search(self.pattern, said, re.MULTILINE))


MESSAGES: tuple[Known, ...] = (
    Known(
        "container-lost",
        "somebody, or the docker daemon's own end, has done that: `docker events` and the daemon's"
        " log tell more",
        r"\bits container \S+ (?:was killed \(|is paused|has been removed|ended with)",
    ),
    Known(
        "configured-at-startup",  # 34568, 30551, 55178
        "make the MultiWorkerMirroredStrategy before any other TensorFlow operation",
        r"Collective ops must be configured at program startup",
        kind=PERMANENT,
    ),
    Known(
        "port-taken",  # 46602, 23434
        "another process took the port; leave the ports to tfcluster (port 0)",
        # grpc++ for TensorFlow, grpcio for KerasTuner's chief
        r"Could not start gRPC server|Failed to bind to address",
        kind=PORT_TAKEN,
    ),
    Known(
        "own-port-taken",
        "a port that the script itself opens is in use: a dashboard or metrics server that every"
        " task of a host starts needs another port in each",
        r"\[Errno (?:98|48)\]|[Aa]ddress already in use|EADDRINUSE",
    ),
    Known(
        "keras-3",  # 72388, keras 20585, ray 47464
        "Keras 3 fails on several workers (keras#20585), and nothing patched it here: start a"
        " script with hooks on, or write `import tf_keras as keras`",
        r"Invalid reduction dimension 0|convert a value \((?:\{.*)?PerReplica",
        kind=PERMANENT,
        is_own=True,
        is_of_keras_3=True,
    ),
    Known(
        "keras-3-parameter-server",
        "Keras 3's `fit` knows no parameter servers: Keras 2's does (`import tf_keras as keras`),"
        " and so does a loop of your own, like jobs/parameter_server.py",
        r"you need to pass this dataset to ClusterCoordinator\.create_per_worker_dataset",
        kind=PERMANENT,
        is_of_keras_3=True,
    ),
    Known(
        "keras-3-refused",
        "what tfcluster patches in Keras 3 does not reach this; the message has the way out",
        r"Keras3Error|whose `fit` tfcluster patches",
        kind=PERMANENT,
        is_own=True,
    ),
    Known(
        "old-keras",
        "the script uses a name that Keras removed before 2.15: the page lists what replaced it",
        OLD_KERAS,
        kind=PERMANENT,
    ),
    Known(
        "keras-2-script",
        "the script is written for Keras 2: --set keras.version=2 runs it with tf_keras; where it"
        " says `import keras`, write `import tf_keras as keras`",
        KERAS_2_SCRIPT,
        kind=PERMANENT,
        is_of_keras_3=True,
    ),
    Known(
        "estimator-removed",  # 76349
        "TensorFlow 2.15 was the last with Estimator: name a Python that has it with --python",
        r"has no attribute 'estimator'|No module named '?tensorflow_estimator"
        r"|cannot import name 'estimator_training'|ESTIMATOR_API_NAME",
        kind=PERMANENT,
    ),
    Known(
        "estimator-eager",  # 46556, 45918
        "Estimator with a strategy needs `tf.compat.v1.disable_eager_execution()` first",
        r"cannot pickle '_thread\.R?[Ll]ock' object"
        r"|MultiWorkerMirroredStrategy cannot be deep copied in eager mode",
        kind=PERMANENT,
    ),
    Known(
        "file-shard",  # 36846, 35878
        "fewer files than workers: use the DATA auto-shard policy",
        r"FILE based sharding|aren't enough elements in this dataset",
        kind=PERMANENT,
        is_own=True,
    ),
    Known(
        "tf-keras-missing",
        "install tf-keras of TensorFlow's minor version (tf-keras 2.21 for TensorFlow 2.21)",
        r"do not have the tf_keras package|No module named 'tf_keras'",
        kind=PERMANENT,
    ),
    Known(
        "tensorboard-missing",
        "TensorFlow no longer brings TensorBoard: install tensorboard, or leave its callback out",
        r"TBNotInstalledError|TensorBoard is not installed|No module named 'tensorboard'",
        kind=PERMANENT,
    ),
    Known(
        "versions",
        "packages that do not fit each other: reinstall TensorFlow with its own requirements",
        r"Descriptors cannot (?:not )?be created directly|undefined symbol"
        r"|version `?GLIBC\w*_[\d.]+'? not found|numpy\.core\.multiarray failed to import"
        r"|numpy\.dtype size changed",
        kind=PERMANENT,
    ),
    Known(
        "tf1-script",
        "the script is written for TensorFlow 1, and no TensorFlow 2 has this name: write"
        " `import tensorflow.compat.v1 as tf` where compat.v1 has it; the page lists the others",
        TF1_SCRIPT,
        kind=PERMANENT,
    ),
    Known(
        "import-error",
        "install it for the Python the start panel names, or choose another with --python",
        r"^(?:ModuleNotFoundError|ImportError)\b",
        kind=PERMANENT,
    ),
    Known(
        "syntax-error",
        "Python cannot read the file; note that the tasks' Python may be older than yours",
        r"^(?:SyntaxError|IndentationError|TabError)\b",
        kind=PERMANENT,
    ),
    Known(
        "script-missing",
        "`script` is relative to `workdir`; files that git ignores are not copied to other hosts",
        r"can't open file '.*': \[Errno 2\]",
        kind=PERMANENT,
    ),
    Known(
        "tf-config",
        "make the resolver, the server or the strategy from the TF_CONFIG that tfcluster sets:"
        " tf.distribute.cluster_resolver.TFConfigClusterResolver()",
        r"ClusterChangedError: the (?:strategy's cluster resolver|script makes a server)",
        kind=PERMANENT,
        is_own=True,
    ),
    Known(
        "tf-config",
        "keep the TF_CONFIG that tfcluster sets: delete the lines that change it, or put"
        ' `if "TF_CONFIG" not in os.environ:` before them; where each task is to train alone,'
        " --set job.kind=plain",
        r"^tfcluster_workers\.errors\.ClusterChangedError",
        kind=PERMANENT,
        is_own=True,
    ),
    Known(
        "tf-config",  # 31969, 62759
        "the script, or something it imports, changes TF_CONFIG: read it, but leave it as it is",
        r"(?s)TF_CONFIG.*JSONDecodeError|tfconfig_cluster_resolver\.py.*JSONDecodeError",
        kind=PERMANENT,
        is_traced=True,
    ),
    Known(
        "tf-config",
        "TF_CONFIG is not as TensorFlow expects it: `tfcluster env` shows it",
        r"Disallowed task type found in cluster spec|not found in cluster_spec"
        r"|There must be at most one '\w+' job|exceeds the maximum id of"
        r"|must have one \"chief\" node|^KeyError: 'evaluator'"
        r"|Could not parse port for local server|as a host-port pair|was not defined in cluster",
        kind=PERMANENT,
    ),
    Known(
        "kerastuner",
        '`"kind": "tuner"` sets them; else set all three in each task\'s `env`, or none: a shell\'s'
        " are not passed on",
        r"KERASTUNER_(?:ORACLE_IP|ORACLE_PORT|TUNER_ID)",
        kind=PERMANENT,
    ),
    Known(
        "chief-alone",
        "every worker must train as many steps, and save, evaluate and predict when one does: take"
        " these calls out of `if index == 0:`; who is not the chief saves into a folder of its own",
        r"did alone what all workers must do"
        r"|Collective instance \d+ expected type \d+ and data_type",
        kind=PERMANENT,
        is_own=True,
    ),
    Known(
        "hosts-differ",  # 47203, 60847, 34156
        "the tasks do not run alike: give each as many GPUs of one type, the same versions and the"
        " same script",
        r"is joining a group with size|but that group has size|incompatible device type"
        r"|Shape mismatch in the collective instance",
        kind=PERMANENT,
        is_own=True,
    ),
    Known(
        "uneven-batches",  # 33086, 36153, 25254
        "one worker ran out of data before the others: repeat() the dataset and set"
        " steps_per_epoch, with drop_remainder=True",
        r"OutOfRangeError(?s:.){0,20000}End of sequence"
        r"|aborted by: (?:\[_Derived_\])?\s*End of sequence",
        is_own=True,
    ),
    Known(
        "memory",
        "this machine's memory is full: fewer tasks on it, smaller batches, a smaller shuffle"
        " buffer, no cache() in memory",
        r"^(?:\S+\.)?_?(?:Array)?MemoryError\b|std::bad_alloc|Cannot allocate memory"
        r"|OOM when allocating tensor.*device:CPU",
    ),
    Known(
        "gpu-memory",
        "the GPU's memory is full: smaller batches, one task per GPU, or"
        " TF_FORCE_GPU_ALLOW_GROWTH=true where tasks share one",
        r"CUDA_ERROR_OUT_OF_MEMORY|ResourceExhaustedError|OOM when allocating tensor",
    ),
    Known(
        "download-race",  # datasets 1302
        'tasks of one host downloaded the same data at once: download it in `"prepare"`, which'
        " runs once on each",
        r"NonMatchingChecksumError|Incomplete or corrupted file detected"
        r"|\.incomplete\b|tensorflow_datasets/downloads(?!/manual)|/downloads/extracted/",
    ),
    Known(
        "shared-file",
        "two tasks write this file at once: let the first worker alone write it, or each its own,"
        " below $TFCLUSTER_CHECKPOINT_DIR",
        r"unable to lock file, errno = 11",
        kind=PERMANENT,
    ),
    Known(
        "shared-file",
        "two tasks may have saved into this folder at once: give each its own, below"
        " $TFCLUSTER_CHECKPOINT_DIR",
        r"_temp/part-\d+-of-\d+\S*; No such file or directory",
    ),
    Known(
        "damaged-data",
        "a file of the data set is damaged: remove its folder, and the next run prepares it anew",
        r"DataLossError(?s:.){0,2000}(?:corrupted|truncated) record at"
        r"|^(?:corrupted|truncated) record at",
        kind=PERMANENT,
        is_own=True,
    ),
    Known(
        "name-lookup",
        'a name was not found: with `"network": "private"` tasks have no network outside, and'
        " `prepare`, which runs outside, can download; else check the names in `cluster`",
        r"Temporary failure in name resolution|Name or service not known"
        r"|nodename nor servname provided|No address associated with hostname"
        r"|Could not resolve host|[Ff]ailed to resolve '|DNS resolution failed",
    ),
    Known(
        "disk-full",
        "the disk is full; `tfcluster prune` removes old runs",
        r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded|ENOSPC",
    ),
    Known(
        "incarnation",  # automl 964
        "a task of an earlier start still answers on this address, or one was started again by"
        " hand: end it, or leave the ports to tfcluster (port 0)",
        r"unexpectedly tried to connect|incarnation doesn't match",
        is_own=True,
    ),
    Known(
        "nccl",
        "NCCL could not connect the GPUs: name the interface in NCCL_SOCKET_IFNAME, look with"
        " NCCL_DEBUG=INFO",
        r"ncclInternalError|ncclSystemError|ncclUnhandledCudaError|unhandled system error"
        r"|Duplicate GPU detected",
    ),
    Known(
        "proxy",  # 24887, 50626, grpc 9989
        "gRPC goes through a proxy: unset grpc_proxy, https_proxy and http_proxy for the tasks",
        r"scheme not supported in proxy URI",
        is_logged=True,
    ),
    Known(
        "peer-never-came",  # 60706, 98217
        "a peer did not come in the time TensorFlow waits: the log of the missing task tells why",
        r"Clean shutdown is not currently implemented",
    ),
    Known(
        "heartbeat",  # 42498, 58434
        "a task was silent for 10 s, TensorFlow's limit: frozen, swapping, asleep or cut off",
        r"heartbeat timeout|stopped sending heartbeats|CoordinationService/Heartbeat",
    ),
)
