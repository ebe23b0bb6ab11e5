"""Known error messages of TensorFlow, Keras and Python, each with a hint and a link to its page.

Numbers in comments are issues of tensorflow/tensorflow unless another project is named. Every row
has a section in ``docs/failures.md``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

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

# The errors that scripts for Keras 2, or for an older Keras, meet in newer releases: each was
# collected from Keras 3.3 to 3.15 and tf_keras, and a test runs the failing lines again.
_MODULE = r"'(?![\w.]*mixed_precision)(?:\w+\.)*keras(?:\.\w+)*'"
"""Module names such as ``tensorflow.keras.utils``, ``keras._tf_keras.keras`` or
``keras.api.optimizers``."""
_NAMES = (
    r"(?:__internal__|experimental|estimator|dtensor|legacy|DenseFeatures|LocallyConnected[12]D|AbstractRNNCell"
    r"|BaseLogger|MeanTensor|MeanRelativeError|RadialConstraint|SidecarEvaluator\w*|RegNet\w+"
    r"|ResNetRS\d+|(?:Generator|Ordered|Sequence)Enqueuer|(?:set_)?learning_phase\w*"
    r"|in_(?:test|train)_phase|placeholder|print_tensor|function|random_binomial|reset_uids"
    r"|manual_variable_initialization|model_from_config|mean_\w+_error|kl_divergence|log_cosh)"
)
"""Names that the modules of Keras 2 have and those of Keras 3 lack."""
_LAYER = (
    r"(?:Sequential|Functional|Model|Dense|Conv[123]D|LSTM|GRU|Embedding|Dropout|Flatten|Reshape"
    r"|Activation|BatchNormalization|InputLayer)"
)
_OPTIMIZER = r"(?:SGD|RMSprop|Adagrad|Adadelta|Adam|Adamax|AdamW|Nadam|Ftrl|LossScaleOptimizer)"
_ATTRIBUTES = (
    rf"'{_OPTIMIZER}' object has no attribute 'lr'"
    rf"|'{_LAYER}' object has no attribute '(?:updates|(?:input|output)_shape|_is_graph_network)'"
    r"|object has no attribute '(?:reset_states|(?:fit|evaluate|predict)_generator|state_updates"
    r"|add_update|get_(?:input|output)(?:_shape)?_at|(?:in|out)bound_nodes)'"
    r"|'Variable' object has no attribute 'read_value'|'ResourceVariable' object is not callable"
    r"|'KerasTensor' object has no attribute 'get_shape'"
)
_ARGUMENTS = (
    r"Argument\(s\) not recognized: \{'lr'"
    r"|(?:fit|evaluate|predict)\(\) got an unexpected keyword argument '(?:workers|max_queue_size"
    r"|use_multiprocessing)'|Arguments not recognized: \{'(?:workers|max_queue|use_multi)"
    r"|compile\(\) got an unexpected keyword argument '(?:sample_weight_mode|target_tensors"
    r"|experimental_run_tf_function|distribute|cloning)'"
    r"|apply_gradients\(\) got an unexpected keyword argument 'experimental_aggregate_gradients'"
    r"|save_weights\(\) got an unexpected keyword argument 'save_format'"
    r"|ModelCheckpoint\.__init__\(\) got an unexpected keyword argument '(?:period|options|load_w)"
    r"|TensorBoard\.__init__\(\) got an unexpected keyword argument '(?:write_grads|batch_size)'"
    r"|to_categorical\(\) got an unexpected keyword argument 'dtype'"
    r"|Unrecognized keyword arguments passed to \w+: \{'(?:dynamic|fused|virtual_batch_size|renorm"
    r"|time_major|batch_input_shape|weights|implementation)"
    r"|add_weight\(\) got multiple values for argument 'shape'|Received: add_weight\('"
)

KERAS_2_SCRIPT: Final = (
    r"must end in `\.(?:weights\.h5|keras)`|Invalid filepath extension for saving"
    r"|Keras 3 only supports|(?:not supported|deprecated) in Keras 3|not available with Keras 3"
    rf"|{_ATTRIBUTES}|{_ARGUMENTS}"
    rf"|module {_MODULE} has no attribute '{_NAMES}'|cannot import name '{_NAMES}' from {_MODULE}"
    rf"|No module named '(?:tensorflow\.)?keras(?:\.\w+)*\.(?:experimental|estimator)\b"
    r"|No module named 'keras\.preprocessing\.text'|'ImageDataGenerator' from 'keras\."
    r"|Cannot convert '\d+' to a shape|Argument `input_tensor` must be a KerasTensor"
    r"|A KerasTensor cannot be used as input to a TensorFlow function"
    r"|`add_loss\(\)` can only be called from inside `build\(\)` or `call\(\)`"
    r"|Could not interpret optimizer identifier: <tensorflow\.python\.training"
    r"|Received: reduction=auto"
)
"""Errors of Keras 3 for code that Keras 2 accepts."""

_GONE = (
    r"(?:wrappers|scikit_learn|np_utils|vis_utils|generic_utils|losses_utils|multi_gpu_model|engine"
    r"|CuDNN(?:LSTM|GRU)|[gs]et_session|adam(?:_v2)?|sgd|rmsprop|maxnorm|model_from_yaml|premade"
    r"|tensorflow_backend|RandomFourierFeatures)"
)
OLD_KERAS: Final = (
    rf"module '[\w.]*keras[\w.]*' has no attribute '{_GONE}'"
    rf"|cannot import name '{_GONE}' from '(?:tensorflow\.)?keras"
    rf"|No module named '(?:tensorflow\.)?keras(?:\.\w+)*\.{_GONE}\b"
    r"|No module named '(?:tensorflow\.)?keras\.layers\.(?:convolutional|core|recurrent|merge"
    r"|normalization|pooling|embeddings|noise|advanced_activations|wrappers)'"
    r"|keras[\w.]*mixed_precision' has no attribute 'experimental'"
    r"|cannot import name 'experimental' from 'tensorflow\.keras\.mixed_precision'"
    r"|object has no attribute '(?:predict_classes|predict_proba)'"
    r"|got an unexpected keyword argument '(?:nb_epoch|nb_val_samples|samples_per_epoch)'"
    r"|Method `model\.to_yaml\(\)` has been removed"
)
"""Errors for code that no Keras of TensorFlow 2.15 or newer accepts."""

SHAPE_MISMATCH: Final = r"Shape mismatch in the collective instance"
TYPE_MISMATCH: Final = r"Collective instance \d+ expected type"
"""Type 0 is a reduction, 1 a broadcast: of a new variable's value, from the first worker."""
NO_TERMINAL: Final = (
    "a task has no terminal to read from: pass the answer in job.args or job.env; for a debugger"
    " start one task by hand: `tfcluster up SPEC --except worker:1` prints the command"
)
NO_CONNECTION: Final = (
    r"URL fetch failure on \S+: None -- |<urlopen error (?!unknown url type|no host given)"
    r"|^\S+(?:Error|Timeout): HTTPS?ConnectionPool\(|Could not resolve host"
    r"|[Ff]ailed to resolve '|^http(?:x|core)\d?\.(?:Connect|Proxy|Network|Read|Timeout|Pool)"
    r"|Cannot connect to host \S+ ssl:|Error executing an HTTP request: libcurl code"
    r"|cannot find the (?:requested files in the local cache|appropriate snapshot folder)"
    r"|We couldn't connect to 'https?://|Couldn't reach .* on the Hub"
    r"|^(?:\w+\.)*(?:OSError|TimeoutError|Connection\w*Error):"
    r" \[Errno (?:5[01]|6[015]|101|11[013])\]"
    r"|^(?:\w+\.)*TimeoutError: (?:timed out|The read operation timed out)"
)
"""Errors of urllib, requests, httpx, aiohttp, TensorFlow's file systems, Keras's `get_file`,
huggingface_hub and transformers for a server that does not answer, whatever its reply would be."""
OTHER_RESOLVER: Final = (
    r"SLURM_\w+ not found in environment\. Not running inside a SLURM step"
    r"|Requested more GPUs per node than available"
    r"|googleapiclient must be installed before using the GCE cluster resolver"
    r"|must be installed before using the Kubernetes Cluster Resolver"
    r"|kubernetes\.config\.config_exception\.ConfigException|Not a SageMaker Environment"
)
"""Errors of the resolvers of tensorflow/python/distribute/cluster_resolver outside of their
platform, without those of TPUs."""


@dataclass(frozen=True, slots=True)
class KnownError:
    """A known failure: how to recognize it, and what the user can do."""

    anchor: str
    """Anchor of its section in ``docs/failures.md``."""
    hint: str
    """The fix in one sentence, or in lines to be pasted."""
    pattern: str = ""
    """Regular expression for the message; empty where only the circumstance identifies it."""
    cause: str = ""
    """The name of the cause, with which tfcluster's own hooks report it (`JobError.cause`)."""
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
    needs_network: bool = False
    """True if the task may lack a network: the hint differs where its network is private."""
    compares_steps: bool = False
    """True if the tasks' steps may explain it: the diagnosis compares them."""
    is_unpatched_keras_3: bool = False
    """True if a patched Keras 3 does not fail like this: the hint says why it was not patched."""

    @property
    def docs(self) -> str:
        return f"docs/failures.md#{self.anchor}"

    def matches(self, text: str) -> bool:
        return bool(self.pattern and re.search(self.pattern, text, re.MULTILINE))


_permanent: Final = functools.partial(KnownError, kind=PERMANENT)
_permanent_cause: Final = functools.partial(_permanent, is_root_cause=True)

_NO_GPU: Final = {
    "driver": "NVIDIA's driver is not there for the task: start its container with the GPUs (docker"
    " --gpus, apptainer --nv), or install the driver",
    "build": "install a TensorFlow for GPUs into the tasks' Python:"
    " `pip install 'tensorflow[and-cuda]'` instead of tensorflow-cpu",
    "libraries": "install NVIDIA's libraries of this TensorFlow into the tasks' Python:"
    " `pip install 'tensorflow[and-cuda]'` with its version; or name their folder in"
    " LD_LIBRARY_PATH (job.env)",
    "version": "the driver was updated, and the kernel still has the old one: restart the machine",
}
"""Cause for which TensorFlow has no GPU (`hooks.devices` of the workers) → the fix."""
_CHECK_DRIVER: Final = "check the driver: nvidia-smi, dmesg | grep -i nvrm"
_ON_CPU: Final = "to train on the CPU: --set resources.gpus=0"


def fix_of_no_gpu(cause: str) -> str:
    """Return the fix for this cause why TensorFlow has no GPU; "": any other one."""
    return _NO_GPU.get(cause, _CHECK_DRIVER)


MESSAGES: tuple[KnownError, ...] = (
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
    _permanent(
        "other-library",
        "the library does not know the other tasks: set strategy.name to jax or torch, and start"
        " the script with the hooks",
        r"coordinator_address should be defined|Number of processes must be defined"
        r"|process id of the current process must be defined"
        r"|environment variable (?:RANK|WORLD_SIZE|MASTER_\w+) expected, but not set",
    ),
    KnownError(
        "jax-left-early",
        "it reached its end while others still trained: all processes must take the same number of"
        " steps, and evaluate and save together",
        r"Barrier timed out\. Id: Shutdown::(?s:.*)\bin clean_up$",
        is_root_cause=True,
        is_logged=True,
    ),
    _permanent_cause(
        "keras-3",  # 72388, keras 20585, ray 47464
        "Keras 3 fails on several workers (keras#20585), and it was not patched here",
        r"Invalid reduction dimension 0|convert a value \((?:\{.*)?PerReplica",
        is_unpatched_keras_3=True,
    ),
    _permanent(
        "keras-3-parameter-server",
        "Keras 3's `fit` supports parameter servers only with tfcluster's patch: leave `hooks` on,"
        " or use Keras 2 (`import tf_keras as keras`); a custom training loop must create the"
        " iterator with its ClusterCoordinator",
        r"you need to pass this dataset to ClusterCoordinator\.create_per_worker_dataset",
        is_keras_3_only=True,
    ),
    _permanent_cause(
        "keras-3-refused",
        "tfcluster's patch of Keras 3 does not cover this; the message says what to do",
        r"\bKeras3Error\b",
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
        r"|cannot import name 'estimator_training'|ESTIMATOR_API_NAME|NoEstimatorError",
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
        "cluster-resolver",
        "this cluster resolver reads the cluster of another platform: pass the strategy"
        " tf.distribute.cluster_resolver.TFConfigClusterResolver(), or no resolver; both read the"
        " TF_CONFIG that tfcluster sets, also in Slurm and Kubernetes",
        OTHER_RESOLVER,
    ),
    _permanent(
        "no-tpu",
        "no TPU was found: set TPU_NAME in job.env, or use MultiWorkerMirroredStrategy, which"
        " trains on CPUs and GPUs",
        r"Please provide a TPU Name to connect to|TPUs not found in the cluster"
        r"|No TPUs with the specified names exist",
    ),
    _permanent(
        "shadowed-module",
        "a file or folder beside the script has the name of a package, and Python imports it"
        " instead: rename it, and check that the package is installed",
        r"No module named '[\w.]+'; '[\w.]+' is not a package",
        cause="only-a-folder",
    ),
    _permanent(
        "shadowed-module",
        "a module imports itself, or one that imports it: rename a file of yours that has the name"
        " of a package, or import inside the function that needs it",
        r"partially initialized module '[\w.]+' .*circular import",
    ),
    _permanent(
        "module-part-missing",
        "Python finds the package, but it does not have this part: change the import, or install"
        " the version that the script was written for",
        r"^ModuleNotFoundError: No module named '\w+\.[\w.]+'"
        r"|^ImportError: cannot import name '\w+' from '",
    ),
    _permanent(
        "keras-distribution",
        "run Keras on JAX: KERAS_BACKEND=jax (job.env). On TensorFlow use tf.distribute",
        r"^AttributeError: module 'keras\.src\.backend\.\w+\.distribution_lib' has no attribute '",
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
        "either let tfcluster choose the addresses: delete the lines that set them, and create"
        " resolver or server from tf.distribute.cluster_resolver.TFConfigClusterResolver(); or"
        " write the script's own addresses into `cluster` of the spec, as above",
        cause="own-addresses",
    ),
    _permanent_cause(
        "tf-config",
        "create the resolver, the server or the strategy from the TF_CONFIG that tfcluster sets:"
        " tf.distribute.cluster_resolver.TFConfigClusterResolver()",
        cause="own-resolver",
    ),
    _permanent_cause(
        "tf-config",
        "keep the TF_CONFIG that tfcluster sets: delete the lines that change it, or put"
        ' `if "TF_CONFIG" not in os.environ:` before them; if each task should train alone,'
        " --set job.kind=plain",
        r"\bClusterChangedError\b",
        cause="cluster-changed",
    ),
    _permanent(
        "tf-config",  # 31969, 62759
        "the script, or something it imports, changes TF_CONFIG: read it, but do not change it",
        r"(?s)TF_CONFIG.*JSONDecodeError|tfconfig_cluster_resolver\.py.*JSONDecodeError",
        is_traced=True,
    ),
    _permanent_cause(
        "not-serving",  # models 11143
        'every task runs the chief\'s program. In the spec, below "job":\n'
        '"per_task": {"ps": {"module": "tfcluster_workers.server"},\n'
        '             "worker": {"module": "tfcluster_workers.server"}}\n'
        "or the same on the command line:\n"
        "--set job.per_task.ps.module=tfcluster_workers.server\n"
        "--set job.per_task.worker.module=tfcluster_workers.server\n"
        "or at the top of the script, before anything of TensorFlow:\n"
        "from tfcluster_workers import server; server.serve_unless_chief()",
        r"\bNotServingError\b",
        cause="not-serving",
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
        "hosts-differ",  # 47203, 60847
        "the tasks differ: give each the same number of GPUs of one type, the same versions and"
        " the same script",
        r"is joining a group with size|but that group has size|incompatible device type",
    ),
    _permanent_cause(
        "models-differ",
        "the tasks make different models: build the model from the same values in all of them,"
        " such as the vocabulary and number of classes of all the data, and in one precision",
        rf"{SHAPE_MISMATCH}(?s:.)*CollectiveBcast|{TYPE_MISMATCH} 1 and .* got type 1\b",
    ),
    _permanent_cause(
        "shapes-differ",
        "the tasks reduce tensors of different shapes: reduce each to one number first"
        " (tf.reduce_sum), or give all the same batch size, with drop_remainder=True",
        rf"{SHAPE_MISMATCH} .*expected shape \[\d[^\]]*\] but .* expected shape \[\d",
    ),
    _permanent_cause(
        "unequal-steps",  # 34156
        "the tasks did different work at the same time: give all of them the same steps_per_epoch,"
        " validation_steps and number of batches, and call evaluate, predict and save in each",
        rf"{SHAPE_MISMATCH}|{TYPE_MISMATCH} \d",
        compares_steps=True,
    ),
    *(
        _permanent_cause("no-gpu", f"{fix}; {_ON_CPU}", cause=f"no-gpu-{cause}")
        for cause, fix in _NO_GPU.items()
    ),
    _permanent_cause("no-gpu", f"{_CHECK_DRIVER}; {_ON_CPU}", r"\bNoGpuError\b", cause="no-gpu"),
    KnownError(
        "uneven-batches",  # 33086, 36153, 25254
        "one worker ran out of data before the others: repeat() the dataset and set"
        " steps_per_epoch, with drop_remainder=True",
        r"OutOfRangeError(?s:.){0,20000}End of sequence"
        r"|aborted by: (?:\[_Derived_\])?\s*End of sequence",
        is_root_cause=True,
    ),
    _permanent(
        "no-terminal",
        NO_TERMINAL,
        r"^EOFError: EOF when reading a line|^(?:bdb\.)?BdbQuit\b|^click\.exceptions\.Abort\b"
        r"|(?:^|: )Aborted!\s*\Z|^(?:termios\.error|OSError): .*Inappropriate ioctl for device",
    ),
    _permanent(
        "no-terminal", NO_TERMINAL, r'getpass\.py", line \d+, in _raw_input', is_traced=True
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
        "certificate",
        "Python does not trust the server's certificate, often that of a proxy: set SSL_CERT_FILE"
        " and REQUESTS_CA_BUNDLE in job.env to a file with the certificates of your site",
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError",
    ),
    KnownError(
        "download-failed",
        "the task could not reach a server: check its address and the network of this machine,"
        " which may need a proxy (https_proxy in job.env); data is best downloaded in `prepare`,"
        " once per host",
        NO_CONNECTION,
        needs_network=True,
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
        r"_temp/part-\d+-of-\d+\S*(?:; No such file or directory| did not exist| not found)"
        r"|_temp; No such file or directory|/checkpoint\.tmp\w+; No such file or directory"
        r"|Unable to synchronously create (?:file|group) \((?:file signature not|name already)",
    ),
    KnownError(
        "shared-folder",
        "tasks of one host make or remove this folder at once: use os.makedirs(…, exist_ok=True),"
        " and remove it in the first worker only, or in `prepare`",
        r"^FileExistsError: \[Errno 17\]|^OSError: \[Errno (?:39|66)\] Directory not empty"
        r"|FailedPreconditionError: \S+; Directory not empty",
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
        "a host name was not found: check it in the script and in `cluster`, and the name server"
        " of this machine",
        r"Temporary failure in name resolution|Name or service not known"
        r"|nodename nor servname provided|No address associated with hostname"
        r"|DNS resolution failed",
        needs_network=True,
    ),
    KnownError(
        "disk-full",
        "a disk is full: `df -h` shows which; `tfcluster prune` removes old runs, which are in"
        " TFCLUSTER_HOME",
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
