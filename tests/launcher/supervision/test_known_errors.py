"""Every known error is recognized from the message that TensorFlow, Keras or Python writes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import plan_of

from tfcluster import kinds
from tfcluster.node_loss import LossNature, NodeLoss
from tfcluster.plans.keras_settings import KerasPatch
from tfcluster.plans.plan import NodePlan
from tfcluster.supervision import known_errors
from tfcluster.supervision.failure import (
    CIRCUMSTANCES,
    WITHOUT_KERAS_3,
    WITHOUT_NETWORK,
    Failure,
    Kind,
    find,
    kind_of_loss,
)
from tfcluster.supervision.known_errors import KnownError
from tfcluster.supervision.restarts import loss_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/failures.md").read_text()
ROWS = [*known_errors.MESSAGES, *CIRCUMSTANCES.values()]
ROWS += [
    KnownError(*advice, kind=str(kind_of_loss(nature)))
    for backend in kinds.REGISTRY
    for nature, advice in kinds.get(backend).losses.items()
]
RUNTIME = "tensorflow.python.framework.errors_impl"
GRAPH = (
    "Graph execution error:\n\nDetected at node IteratorGetNext defined at"
    " (most recent call last):\n"
    '  File "/job/main.py", line 40, in <module>\n\n'
)

SHAPES = (
    "Collective ops is aborted by: Shape mismatch in the collective instance 170. Op at device"
    " /job:worker/replica:0/task:1/device:CPU:0 expected shape {} but another member in the group"
    " expected shape {}. This is likely due to different input shapes at different members of the"
    " collective op."
)
UNREACHABLE = [
    (
        "Exception",  # Keras 2.15 and 3.15
        "URL fetch failure on https://example.org/mnist.npz: None -- [Errno -3] Temporary failure"
        " in name resolution",
    ),
    ("Exception", "URL fetch failure on http://10.0.0.9/x: None -- [Errno 111] Connection refused"),
    ("urllib.error.URLError", "<urlopen error [Errno -2] Name or service not known>"),
    ("urllib.error.URLError", "<urlopen error timed out>"),
    (
        "requests.exceptions.ConnectionError",  # 2.34
        "HTTPSConnectionPool(host='example.org', port=443): Max retries exceeded with url: /x"
        " (Caused by NameResolutionError(\"HTTPSConnection(host='example.org', port=443): Failed to"
        " resolve 'example.org' ([Errno -2] Name or service not known)\"))",
    ),
    (
        "requests.exceptions.ProxyError",
        "HTTPSConnectionPool(host='example.org', port=443): Max retries exceeded with url: /"
        " (Caused by ProxyError('Unable to connect to proxy', NewConnectionError(",
    ),
    ("httpx.ConnectError", "[Errno 111] Connection refused"),  # 0.28
    (
        "aiohttp.client_exceptions.ClientConnectorDNSError",  # 3.14
        "Cannot connect to host example.org:443 ssl:default [Name or service not known]",
    ),
    (
        "huggingface_hub.errors.LocalEntryNotFoundError",  # 2.4
        "An error happened while trying to locate the file on the Hub and we cannot find the"
        " requested files in the local cache. Please check your connection and try again or make",
    ),
    (
        "huggingface_hub.errors.LocalEntryNotFoundError",
        "Got: ConnectError: [Errno -2] Name or service not known\nAn error happened while trying to"
        " locate the files on the Hub, and we cannot find the appropriate snapshot folder for the",
    ),
    ("ConnectionError", "Couldn't reach 'mnist' on the Hub (LocalEntryNotFoundError)"),
    (
        "OSError",  # transformers 5.24
        "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them"
        " in the cached files.",
    ),
    (
        f"{RUNTIME}.FailedPreconditionError",  # TensorFlow 2.15.1 and 2.21.0: gs://…
        "Error executing an HTTP request: libcurl code 6 meaning 'Couldn't resolve host name',"
        " error details: Could not resolve host: storage.googleapis.com\n\t when reading gs://x",
    ),
    ("OSError", "[Errno 101] Network is unreachable"),
    ("TimeoutError", "[Errno 110] Connection timed out"),
    ("ConnectionRefusedError", "[Errno 111] Connection refused"),
]
"""Type and message of the exceptions for a server that cannot be reached."""

MESSAGES = [
    (
        "configured-at-startup",
        Kind.PERMANENT,
        "RuntimeError",
        "Collective ops must be configured at program startup",
    ),
    ("port-taken", Kind.PORT_TAKEN, f"{RUNTIME}.UnknownError", "Could not start gRPC server"),
    (
        "port-taken",
        Kind.PORT_TAKEN,
        "RuntimeError",
        "Failed to bind to address 127.0.0.1:8000; set GRPC_VERBOSITY=debug environment variable",
    ),
    ("own-port-taken", Kind.EXCEPTION, "OSError", "[Errno 98] Address already in use"),
    (
        "keras-3",
        Kind.PERMANENT,
        "ValueError",
        "Invalid reduction dimension 0 for input with 0 dimensions. for '{{node Mean}}'",
    ),
    (
        "keras-3",
        Kind.PERMANENT,
        "ValueError",
        "Attempt to convert a value (PerReplica:{\n  0: <tf.Tensor>\n}) with an unsupported type",
    ),
    (
        "keras-3",
        Kind.PERMANENT,
        "ValueError",
        "Attempt to convert a value ({'left': PerReplica:{\n  0: <tf.Tensor>\n}}) with an",
    ),
    (
        "keras-3-parameter-server",
        Kind.PERMANENT,
        "ValueError",
        "To use this dataset, you need to pass this dataset to"
        " ClusterCoordinator.create_per_worker_dataset.",
    ),
    (
        "keras-3-refused",
        Kind.PERMANENT,
        "tfcluster_workers.keras3.release.Keras3Error",
        "the metric `top` was made outside strategy.scope(), so each worker would count only its"
        " own share: make it inside the scope",
    ),
    (
        "keras-3-refused",
        Kind.PERMANENT,
        "SystemExit",
        "keras_mnist: Keras 3.16.0 cannot be patched for several workers: Trainer.fit is missing",
    ),
    (
        "keras-2-script",
        Kind.PERMANENT,
        "ValueError",
        "When using `save_weights_only=True` in `ModelCheckpoint`, the filepath provided must end"
        " in `.weights.h5` (Keras weights format). Received: filepath=ckpt/at-{epoch}",
    ),
    (
        "keras-2-script",
        Kind.PERMANENT,
        "AttributeError",
        "module 'keras._tf_keras.keras' has no attribute 'experimental'",
    ),
    (
        "keras-2-script",
        Kind.PERMANENT,
        "AttributeError",
        "in user code:\n\n    AttributeError: 'Mean' object has no attribute 'reset_states'",
    ),
    ("keras-2-script", Kind.PERMANENT, "ValueError", "Cannot convert '1' to a shape."),
    (  # 2.21.0: tf.compat.v1.layers.dense
        "keras-2-script",
        Kind.PERMANENT,
        "AttributeError",
        "`dense` is not available with Keras 3.",
    ),
    (
        "keras-2-script",
        Kind.PERMANENT,
        "AttributeError",
        "module 'keras._tf_keras.keras' has no attribute '__internal__'",
    ),
    (
        "keras-2-script",
        Kind.PERMANENT,
        "ModuleNotFoundError",
        "No module named 'tensorflow.keras.layers.experimental'",
    ),
    ("old-keras", Kind.PERMANENT, "ModuleNotFoundError", "No module named 'keras.engine'"),
    (
        "old-keras",
        Kind.PERMANENT,
        "AttributeError",
        "module 'tf_keras.api._v2.keras.utils' has no attribute 'np_utils'",
    ),
    (
        "estimator-removed",
        Kind.PERMANENT,
        "AttributeError",
        "module 'tensorflow' has no attribute 'estimator'",
    ),
    (
        "estimator-removed",
        Kind.PERMANENT,
        "ImportError",
        "cannot import name 'estimator_training' from 'tensorflow.python.distribute'",
    ),
    (
        "estimator-removed",
        Kind.PERMANENT,
        "ModuleNotFoundError",
        "No module named 'tensorflow_estimator'",
    ),
    (
        "estimator-removed",
        Kind.PERMANENT,
        "NoEstimatorError",
        "TensorFlow 2.21.0 has no tf.estimator (the last release with it is 2.15)",
    ),
    (
        "estimator-eager",
        Kind.PERMANENT,
        "TypeError",
        "cannot pickle '_thread.lock' object",
    ),
    (
        "estimator-eager",
        Kind.PERMANENT,
        "ValueError",
        "MultiWorkerMirroredStrategy cannot be deep copied in eager mode. If you're using",
    ),
    (
        "tf1-script",
        Kind.PERMANENT,
        "AttributeError",
        "module 'tensorflow' has no attribute 'logging'",
    ),
    (
        "tf1-script",
        Kind.PERMANENT,
        "AttributeError",
        "module 'tensorflow._api.v2.train' has no attribute 'GradientDescentOptimizer'",
    ),
    ("tf1-script", Kind.PERMANENT, "ModuleNotFoundError", "No module named 'tensorflow.examples'"),
    (
        "tf1-script",
        Kind.PERMANENT,
        "ModuleNotFoundError",
        "No module named 'tensorflow.contrib.distribute'",
    ),
    (
        "file-shard",
        Kind.PERMANENT,
        f"{RUNTIME}.InvalidArgumentError",
        "Could not apply FILE based sharding: the dataset only has 1 file(s), which is not enough"
        " for the required 2 shards/workers.If you are using datasets with distribution strategy",
    ),
    (
        "file-shard",
        Kind.PERMANENT,
        f"{RUNTIME}.InvalidArgumentError",
        "There aren't enough elements in this dataset for each shard to have at least one element",
    ),
    (
        "tf-keras-missing",
        Kind.PERMANENT,
        "ImportError",
        "Keras cannot be imported. Your environment has TF_USE_LEGACY_KERAS set to True, but you"
        " do not have the tf_keras package installed.",
    ),
    (
        "tensorboard-missing",
        Kind.PERMANENT,
        "tensorflow.python.summary.tb_summary.TBNotInstalledError",
        "TensorBoard is not installed, missing implementation for `tf.summary.image`",
    ),
    (
        "versions",
        Kind.PERMANENT,
        "ImportError",
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by x.so)",
    ),
    (
        "versions",
        Kind.PERMANENT,
        "TypeError",
        "Descriptors cannot be created directly.\nIf this call came from a _pb2.py file",
    ),
    ("import-error", Kind.PERMANENT, "ModuleNotFoundError", "No module named 'wandb'"),
    ("import-error", Kind.PERMANENT, "ImportError", "libcudart.so.12: cannot open shared object"),
    (
        "module-part-missing",
        Kind.PERMANENT,
        "ModuleNotFoundError",
        "No module named 'wandb.keras' (wandb 0.31.0)",
    ),
    (
        "module-part-missing",
        Kind.PERMANENT,
        "ImportError",
        "cannot import name 'float_' from 'numpy' (/env/lib/numpy/__init__.py) (numpy 2.4.6)",
    ),
    (
        "shadowed-module",
        Kind.PERMANENT,
        "ModuleNotFoundError",
        "No module named 'requests.adapters'; 'requests' is not a package",
    ),
    (
        "shadowed-module",
        Kind.PERMANENT,
        "ModuleNotFoundError",
        "No module named 'wandb.keras' (wandb is only the folder /job/wandb)",
    ),
    (
        "shadowed-module",
        Kind.PERMANENT,
        "AttributeError",
        "partially initialized module 'wandb' has no attribute 'init' (most likely due to a"
        " circular import)",
    ),
    (  # TensorFlow 2.15.1 and 2.21.0, as all resolvers below
        "cluster-resolver",
        Kind.PERMANENT,
        "RuntimeError",
        "SLURM_PROCID not found in environment. Not running inside a SLURM step?",
    ),
    (
        "cluster-resolver",
        Kind.PERMANENT,
        "RuntimeError",
        "SLURM_STEP_NUM_TASKS not found in environment. Not running inside a SLURM step?",
    ),
    (
        "cluster-resolver",
        Kind.PERMANENT,
        "RuntimeError",
        "Requested more GPUs per node than available.",
    ),
    (
        "cluster-resolver",
        Kind.PERMANENT,
        "ImportError",
        "googleapiclient must be installed before using the GCE cluster resolver",
    ),
    (
        "cluster-resolver",
        Kind.PERMANENT,
        "ImportError",
        "The Kubernetes Python client must be installed before using the Kubernetes Cluster"
        " Resolver. To install the Kubernetes Python client, run `pip install kubernetes` on your"
        " command line.",
    ),
    (
        "cluster-resolver",
        Kind.PERMANENT,
        "kubernetes.config.config_exception.ConfigException",
        "Service host/port is not set.",
    ),
    ("no-tpu", Kind.PERMANENT, "ValueError", "Please provide a TPU Name to connect to."),
    (
        "no-tpu",
        Kind.PERMANENT,
        f"{RUNTIME}.NotFoundError",
        "TPUs not found in the cluster. Failed in initialization: No OpKernel was registered to"
        " support Op 'ConfigureDistributedTPU' used by {{node ConfigureDistributedTPU}}",
    ),
    ("syntax-error", Kind.PERMANENT, "SyntaxError", "invalid syntax (main.py, line 3)"),
    (
        "tf-config",
        Kind.PERMANENT,
        "ValueError",
        "Disallowed task type found in cluster spec. Allowed types are ('chief', 'worker')",
    ),
    ("tf-config", Kind.PERMANENT, "KeyError", "'evaluator'"),
    (
        "tf-config",
        Kind.PERMANENT,
        "tfcluster_workers.errors.ClusterChangedError",
        "main.py:3 removes TF_CONFIG: each of the 2 workers would train alone",
    ),
    (
        "tf-config",
        Kind.PERMANENT,
        "tfcluster_workers.errors.ClusterChangedError",
        "the script makes a server: this task would be ps:0 of {}",
    ),
    (
        "tf-config",
        Kind.PERMANENT,
        "tfcluster_workers.errors.ClusterChangedError",
        "main.py:3 sets TF_CONFIG: this task would be worker:0 of {}\ntfcluster started it as"
        " worker:0 of {}\nto keep the script's own addresses: --set 'cluster={}'",
    ),
    (
        "not-serving",
        Kind.PERMANENT,
        "tfcluster_workers.errors.NotServingError",
        "ps:0 makes a ParameterServerStrategy, which only the chief may make: TensorFlow would",
    ),
    (
        "tf-config",
        Kind.PERMANENT,
        f"{RUNTIME}.InvalidArgumentError",
        'Could not interpret "10.0.0.1" as a host-port pair.',
    ),
    (
        "kerastuner",
        Kind.PERMANENT,
        "RuntimeError",
        "KERASTUNER_ORACLE_IP environment variable was set, but KERASTUNER_TUNER_ID was not",
    ),
    (  # 2.15.1 and 2.21.0: the chief evaluates, early stopping in one worker, fewer examples
        "unequal-steps",
        Kind.PERMANENT,
        f"{RUNTIME}.InternalError",
        f"{GRAPH}Collective ops is aborted by: Collective instance 770 expected type 0 and"
        " data_type 1 but got type 0 and data_type 9\nAdditional GRPC error information",
    ),
    (  # 2.21.0: unequal steps_per_epoch, and validation_steps on both
        "unequal-steps",
        Kind.PERMANENT,
        f"{RUNTIME}.InvalidArgumentError",
        "{{function_node __wrapped__CollectiveReduceV2_Nordering_token_1_device_/job:worker}}"
        f" {SHAPES.format('[]', '[1]')} [Op:CollectiveReduceV2] name: ",
    ),
    (  # 2.15.1: unequal steps_per_epoch; 2.21.0: a loop with unequal steps, then `evaluate`
        "unequal-steps",
        Kind.PERMANENT,
        f"{RUNTIME}.InvalidArgumentError",
        f"{SHAPES.format('[97]', '[]')} [Op:CollectiveReduceV2] name: ",
    ),
    (  # 2.15.1 and 2.21.0: unequal units
        "models-differ",
        Kind.PERMANENT,
        f"{RUNTIME}.InvalidArgumentError",
        f"{SHAPES.format('[10,9]', '[10,8]')}\nThe error could be from a previous operation."
        " Restart your program to reset. [Op:CollectiveBcastRecv]",
    ),
    (  # 2.15.1 and 2.21.0: float64 in one task
        "models-differ",
        Kind.PERMANENT,
        f"{RUNTIME}.InternalError",
        "Collective ops is aborted by: Collective instance 100 expected type 1 and data_type 1 but"
        " got type 1 and data_type 2\nAdditional GRPC error information",
    ),
    (  # 2.15.1 and 2.21.0: `strategy.reduce` of one value per example
        "shapes-differ",
        Kind.PERMANENT,
        f"{RUNTIME}.InvalidArgumentError",
        f"{SHAPES.format('[24]', '[16]')} [Op:CollectiveReduceV2] name: ",
    ),
    (
        "hosts-differ",
        Kind.PERMANENT,
        f"{RUNTIME}.InternalError",
        "Collective ops is aborted by: Device /job:worker/replica:0/task:1/device:GPU:0 is joining"
        " a group with size 8, but that group has size 4 (group_key=1)",
    ),
    *(
        ("no-gpu", Kind.PERMANENT, exception, f"{name}this task was given {given}: {why}")
        for exception, name in (
            ("tfcluster_workers.errors.NoGpuError", ""),
            ("tensorflow.python.autograph.impl.api.StagingError", "NoGpuError: "),
        )
        for given in ("GPU 0, but TensorFlow registers none",)
        for why in (
            "cannot load libcuda.so.1",
            "cannot load libcudart.so.12, libcudnn.so.9",
            "kernel version 550.120.0 does not match DSO version 560.35.5",
            "cuInit: CUDA_ERROR_UNKNOWN: unknown error",
            "it was built without support for GPUs",
        )
    ),
    (
        "uneven-batches",
        Kind.EXCEPTION,
        f"{RUNTIME}.OutOfRangeError",
        f"{GRAPH}End of sequence\n\t [[{{{{node IteratorGetNext}}}}]]",
    ),
    (
        "uneven-batches",
        Kind.EXCEPTION,
        f"{RUNTIME}.OutOfRangeError",
        "Collective ops is aborted by: [_Derived_]End of sequence",
    ),
    (
        "gpu-memory",
        Kind.EXCEPTION,
        f"{RUNTIME}.ResourceExhaustedError",
        f"{GRAPH}OOM when allocating tensor with shape[8192,8192] and type float on /device:GPU:0",
    ),
    ("memory", Kind.EXCEPTION, "MemoryError", ""),
    (
        "memory",
        Kind.EXCEPTION,
        f"{RUNTIME}.ResourceExhaustedError",
        "OOM when allocating tensor with shape[9,9] and type float on /job:worker/replica:0/task:0"
        "/device:CPU:0 by allocator cpu",
    ),
    (
        "memory",
        Kind.EXCEPTION,
        "numpy.core._exceptions._ArrayMemoryError",
        "Unable to allocate 74.5 GiB for an array with shape (10000000000,)",
    ),
    (
        "shared-file",
        Kind.PERMANENT,
        "BlockingIOError",
        "[Errno 11] Unable to synchronously create file (unable to lock file, errno = 11, error"
        " message = 'Resource temporarily unavailable')",
    ),
    (
        "shared-file",
        Kind.EXCEPTION,
        f"{RUNTIME}.NotFoundError",
        "/job/model/variables/variables_temp/part-00000-of-00001.data-00000-of-00001; No such file"
        " or directory [Op:MergeV2Checkpoints]",
    ),
    (  # 2.15.1 and 2.21.0, as the next three
        "shared-file",
        Kind.EXCEPTION,
        f"{RUNTIME}.InvalidArgumentError",
        "{{function_node __wrapped__MergeV2Checkpoints_device_/job:worker/replica:0/task:1/device:C"
        "PU:0}} allow_missing_files was set to false and /ck/ckpt-0_temp/part-00000-of-00001 did"
        " not exist.NOT_FOUND: /ck/ckpt-0_temp/part-00000-of-00001 not found"
        " [Op:MergeV2Checkpoints]",
    ),
    (
        "shared-file",
        Kind.EXCEPTION,
        f"{RUNTIME}.NotFoundError",
        "/ck/ckpt-3_temp/part-00000-of-00001.index.tempstate1; No such file or directory"
        " [Op:SaveV2]",
    ),
    (
        "shared-file",
        Kind.EXCEPTION,
        f"{RUNTIME}.NotFoundError",
        "/bk/chief/ckpt-1_temp; No such file or directory [Op:SaveV2]",
    ),
    (
        "shared-file",
        Kind.EXCEPTION,
        f"{RUNTIME}.NotFoundError",
        "/bk/chief/checkpoint.tmp9f1c2a; No such file or directory",
    ),
    ("shared-folder", Kind.EXCEPTION, "FileExistsError", "[Errno 17] File exists: '/job/logs'"),
    ("shared-folder", Kind.EXCEPTION, "OSError", "[Errno 39] Directory not empty: '/job/logs'"),
    (
        "shared-folder",
        Kind.EXCEPTION,
        f"{RUNTIME}.FailedPreconditionError",
        "/bk/chief; Directory not empty",
    ),
    (
        "damaged-data",
        Kind.PERMANENT,
        f"{RUNTIME}.DataLossError",
        GRAPH + "corrupted record at 4589\n\t [[{{node IteratorGetNext}}]]",
    ),
    (
        "damaged-data",
        Kind.PERMANENT,
        f"{RUNTIME}.DataLossError",
        "{{function_node __wrapped__IteratorGetNext}} truncated record at 1128204' failed with"
        " Read less bytes than requested [Op:IteratorGetNext]",
    ),
    (
        "download-race",
        Kind.EXCEPTION,
        "tensorflow_datasets.core.download.download_manager.NonMatchingChecksumError",
        "Artifact https://example.org/x.tar, downloaded to /data/x, has wrong checksum",
    ),
    (
        "download-race",
        Kind.EXCEPTION,
        "ValueError",
        "Incomplete or corrupted file detected. The sha256 file hash does not match",
    ),
    *(("download-failed", Kind.EXCEPTION, *error) for error in UNREACHABLE),
    (
        "certificate",
        Kind.EXCEPTION,
        "requests.exceptions.SSLError",
        "HTTPSConnectionPool(host='example.org', port=443): Max retries exceeded with url: /"
        " (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]",
    ),
    (
        "name-lookup",
        Kind.EXCEPTION,
        "socket.gaierror",
        "[Errno -2] Name or service not known",
    ),
    (
        "name-lookup",
        Kind.EXCEPTION,
        f"{RUNTIME}.UnavailableError",
        "failed to connect to gpu7:2222; DNS resolution failed for service: gpu7:2222",
    ),
    ("no-terminal", Kind.PERMANENT, "EOFError", "EOF when reading a line"),  # input(), rich
    ("no-terminal", Kind.PERMANENT, "bdb.BdbQuit", ""),  # breakpoint(), pdb.set_trace()
    ("no-terminal", Kind.PERMANENT, "click.exceptions.Abort", ""),  # click.prompt, click.confirm
    (
        "no-terminal",
        Kind.PERMANENT,
        "termios.error",
        "(25, 'Inappropriate ioctl for device')",
    ),
    ("disk-full", Kind.EXCEPTION, "OSError", "[Errno 28] No space left on device: '/job/ckpt'"),
    (
        "incarnation",
        Kind.EXCEPTION,
        f"{RUNTIME}.AbortedError",
        "/job:worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation."
        " It has likely restarted.\nThe error could be from a previous operation. Restart your"
        " program to reset.",
    ),
    (
        "nccl",
        Kind.EXCEPTION,
        f"{RUNTIME}.InternalError",
        "NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail.",
    ),
    (
        "heartbeat",
        Kind.COLLATERAL,
        f"{RUNTIME}.UnavailableError",
        "Collective ops is aborted by: Error reported from /job:worker/task:1: Task"
        " /job:worker/replica:0/task:1 heartbeat timeout.",
    ),
]


@pytest.mark.parametrize(("anchor", "kind", "exception", "message"), MESSAGES)
def test_a_known_error_is_recognized_from_the_report_and_from_the_log(
    anchor: str, kind: Kind, exception: str, message: str
) -> None:
    error: dict[str, Any] = {"exception": exception, "message": message}
    reported = Failure("worker:0", 1, None, error=error)
    place = '  File "/job/main.py", line 40, in <module>\n    main()\n'
    log = f"epoch 1\nTraceback (most recent call last):\n{place}{exception}: {message}\n"
    logged = Failure("worker:0", 1, None, last_lines=log)
    for failure in (reported, logged):
        assert failure.kind is kind
        assert failure.docs == f"docs/failures.md#{anchor}"
        assert failure.hint


@pytest.mark.parametrize(
    ("exit_code", "number", "log", "anchor"),
    [
        (2, None, "python: can't open file '/job/x.py': [Errno 2] No such file", "script-missing"),
        (1, None, '  File "/job/x.py", line 3\n    if\n      ^\nSyntaxError: no', "syntax-error"),
        (1, None, "E chttp2: 'https' scheme not supported in proxy URI 'https://p'", "proxy"),
        (
            None,
            6,
            "F grpc_server_lib.cc:103] Non-OK-status: Stop() status: UNIMPLEMENTED: Clean shutdown"
            " is not currently implemented\nFatal Python error: Aborted",
            "peer-never-came",
        ),
        (1, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory", "gpu-memory"),
        (None, 6, "terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
    ],
)
def test_a_known_error_without_an_exception_is_recognized_from_the_last_lines(
    exit_code: int | None, number: int | None, log: str, anchor: str
) -> None:
    failure = Failure("worker:0", exit_code, number, last_lines=log)
    assert failure.docs == f"docs/failures.md#{anchor}"


@pytest.mark.parametrize(
    ("backend", "nature", "kind", "anchor"),
    [
        ("docker", LossNature.INFRASTRUCTURE, "node_lost", "container-lost"),
        ("docker", LossNature.OWN_FAILURE, "node_lost", "container-lost"),
        ("docker", LossNature.OUT_OF_MEMORY, "out_of_memory", "out-of-memory"),
        ("docker", LossNature.UNKNOWN, "node_lost", "node-lost"),
        ("kubernetes", LossNature.OUT_OF_MEMORY, "out_of_memory", "pod-out-of-memory"),
        ("kubernetes", LossNature.PREEMPTED, "preempted", "pod-preempted"),
        ("kubernetes", LossNature.PERMANENT, "permanent", "pod-permanent"),
        ("kubernetes", LossNature.SILENT, "node_lost", "pod-lost"),
        ("kubernetes", LossNature.OWN_FAILURE, "node_lost", "pod-lost"),
        ("ssh", LossNature.UNKNOWN, "node_lost", "node-lost"),
    ],
)
def test_the_nature_of_a_loss_decides_the_kind_of_the_failure_and_its_backend_the_hint(
    backend: str, nature: LossNature, kind: str, anchor: str
) -> None:
    plan = replace(plan_of("worker:0"), nodes=(NodePlan("local", backend, None, "/job"),))
    failure = loss_of(plan, "local", "worker:0", NodeLoss("it is gone", nature))
    assert failure.kind == kind
    assert failure.reason == "it is gone"
    assert failure.docs == f"docs/failures.md#{anchor}"


def test_an_unreadable_tf_config_is_recognized_by_its_traceback() -> None:
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/tensorflow/python/distribute/cluster_resolver/'
        'tfconfig_cluster_resolver.py", line 48, in _load_tf_config\n'
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
    )
    error = {"exception": "json.decoder.JSONDecodeError", "message": "Expecting value: line 1"}
    failure = Failure("worker:0", 1, None, error=error | {"traceback": traceback})
    assert failure.docs == "docs/failures.md#tf-config"
    assert failure.kind is Kind.PERMANENT
    other = Failure("worker:0", 1, None, error=error | {"traceback": "json/decoder.py"})
    assert other.kind is Kind.EXCEPTION


def test_a_location_in_the_message_is_not_repeated() -> None:
    message = "main.py:3 removes TF_CONFIG: each of the 2 workers would train alone"
    error = {"exception": "tfcluster_workers.errors.ClusterChangedError", "message": message}
    failure = Failure("worker:0", 1, None, error=error | {"file": "/job/main.py", "line": 3})
    assert failure.reason == f"ClusterChangedError: {message}"


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("AttributeError", "'Namespace' object has no attribute 'lr'"),
        ("AttributeError", "'Config' object has no attribute 'output_shape'"),
        ("AttributeError", "module 'keras.layers' has no attribute 'Dens'"),
        ("TypeError", "train() got an unexpected keyword argument 'workers'"),
        ("TypeError", "Model.fit() got an unexpected keyword argument 'epoch'"),
        ("ValueError", "Unrecognized keyword arguments passed to Dense: {'unit': 3}"),
    ],
)
def test_a_mistake_in_the_script_is_not_blamed_on_keras(exception: str, message: str) -> None:
    assert find(f"{exception}: {message}") is None


@pytest.mark.parametrize("anchor", ["keras-2-script", "keras-3-parameter-server"])
def test_if_the_spec_asks_for_keras_3_the_hint_suggests_keras_2(anchor: str) -> None:
    message = next(message for name, _, _, message in MESSAGES if name == anchor)
    error = {"exception": "ValueError", "message": message}
    assert Failure("worker:0", 1, None, error=error).hint != WITHOUT_KERAS_3
    asked = Failure("worker:0", 1, None, error=error, asks_for_keras_3=True)
    assert asked.hint == WITHOUT_KERAS_3
    assert asked.docs == f"docs/failures.md#{anchor}"


@pytest.mark.parametrize(
    ("facts", "here", "in_a_pod"),
    [
        (
            {"signal": 9, "out_of_memory": "the kernel killed it"},
            "fewer tasks on this machine",
            "runtime.kubernetes.resources.limits",
        ),
        ({"signal": 9}, "dmesg", "kubectl describe pod"),
        (
            {"error": {"exception": "OSError", "message": "[Errno 28] No space left on device"}},
            "tfcluster prune",
            "ephemeral-storage",
        ),
        (
            {"error": {"exception": "MemoryError", "message": ""}},
            "fewer tasks on it",
            "runtime.kubernetes.resources.limits",
        ),
        (
            {"error": {"exception": "gaierror", "message": "Name or service not known"}},
            "name server of this machine",
            "the cluster's DNS",
        ),
    ],
)
def test_the_hint_for_a_task_in_a_pod_is_what_helps_there(
    facts: dict[str, Any], here: str, in_a_pod: str
) -> None:
    end: dict[str, Any] = {"exit_code": None if "signal" in facts else 1, "signal": None, **facts}
    assert here in str(Failure("worker:0", **end).hint)
    assert here in str(Failure("worker:0", **end, backend="local").hint)
    hint = str(Failure("worker:0", **end, backend="kubernetes").hint)
    assert in_a_pod in hint
    assert here not in hint


def test_hints_of_backends_are_about_known_errors() -> None:
    known = {row.anchor for row in ROWS}
    for backend in kinds.REGISTRY:
        assert set(kinds.get(backend).hints) <= known, backend
    ended = Failure("worker:0", None, 9, out_of_memory="the kernel killed it", backend="slurm")
    assert "runtime.slurm.mem" in str(ended.hint)


@pytest.mark.parametrize("error", UNREACHABLE)
def test_in_a_private_network_the_hint_names_prepare(error: tuple[str, str]) -> None:
    report = {"exception": error[0], "message": error[1]}
    assert "private" not in str(Failure("worker:0", 1, None, error=report).hint)
    assert Failure("worker:0", 1, None, error=report, is_cut_off=True).hint == WITHOUT_NETWORK


@pytest.mark.parametrize(
    "error",
    [
        "Exception: URL fetch failure on https://example.org/mnist.npz: 404 -- Not Found",
        "urllib.error.HTTPError: HTTP Error 403: Forbidden",
        "urllib.error.URLError: <urlopen error unknown url type: s3>",
        "EOFError: Ran out of input",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/part-00000-of-00001'",
    ],
)
def test_a_wrong_address_is_not_blamed_on_the_network_or_on_other_tasks(error: str) -> None:
    assert find(error) is None


def test_the_answer_that_a_task_cannot_read_is_recognized_without_a_message() -> None:
    """click ends with a line, and getpass with an exception without a message."""
    aborted = Failure("worker:0", 1, None, last_lines="Name: Aborted!\n")
    traceback = '  File "/usr/lib/python3.11/getpass.py", line 148, in _raw_input\nEOFError\n'
    error = {"exception": "EOFError", "message": "", "traceback": traceback}
    for failure in (aborted, Failure("worker:0", 1, None, error=error)):
        assert failure.docs == "docs/failures.md#no-terminal"
        assert failure.kind is Kind.PERMANENT
    other = Failure("worker:0", 1, None, error=error | {"traceback": "multiprocessing"})
    assert other.docs is None


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("on", "`fit` runs in a child of the script that has no hooks"),
        ("off", "TFCLUSTER_KERAS3_SHIM is off. Remove it"),
        ("no hooks", "the task has no hooks. Start it as a `script` or `module`"),
    ],
)
def test_the_hint_says_why_keras_3_was_not_patched(patch: KerasPatch, reason: str) -> None:
    message = next(message for name, _, _, message in MESSAGES if name == "keras-3")
    error = {"exception": "ValueError", "message": message}
    failed = Failure("worker:0", 1, None, error=error, keras_patch=patch)
    assert f"it was not patched here: {reason}" in str(failed.hint)


BENIGN = [
    "stty: 'standard input': Inappropriate ioctl for device",
    "WARNING:urllib3.connectionpool:Retrying (Retry(total=1)) after connection broken by X: Max"
    " retries exceeded with url: /x",
    "Aborted! Going on with the other file",
    "W local_rendezvous.cc:404] Local rendezvous is aborting with status: OUT_OF_RANGE: End of"
    " sequence",
    "E cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)",
    "wandb not available (ImportError: No module named 'wandb'), going on without",
]


@pytest.mark.parametrize("line", BENIGN)
def test_output_of_healthy_tasks_matches_no_known_error(line: str) -> None:
    failure = Failure("worker:0", 3, None, last_lines=f"{line}\n" * 3)
    assert failure.hint is None
    assert failure.kind is Kind.EXIT_CODE


def test_every_known_error_has_a_section_and_every_section_a_known_error() -> None:
    anchors = re.findall(r'^<a id="([\w-]+)"></a>$', PAGE, re.MULTILINE)
    assert len(anchors) == len(set(anchors))
    assert set(anchors) == {row.anchor for row in ROWS}
    assert set(re.findall(r"\(#([\w-]+)\)", PAGE)) == set(anchors)


def test_sections_say_which_failures_are_permanent() -> None:
    section = re.compile(r'^<a id="([\w-]+)"></a>\n### (.*)$', re.MULTILINE)
    message = {anchor for anchor, title in section.findall(PAGE) if title.endswith("(permanent)")}
    rows = {row.anchor for row in ROWS if row.kind == known_errors.PERMANENT}
    assert message == rows | {"start-failed"}


def test_every_known_message_is_tested() -> None:
    tested = {anchor for anchor, *_ in MESSAGES} | {"script-missing", "proxy", "peer-never-came"}
    assert {row.anchor for row in known_errors.MESSAGES} == tested


def test_the_page_is_linked_from_the_readme() -> None:
    assert "](docs/failures.md)" in (ROOT / "README.md").read_text()


def test_a_missing_manual_download_is_not_taken_for_a_download_race() -> None:
    message = "mnist: its files belong into /home/ann/tensorflow_datasets/downloads/manual/mnist"
    assert find(message) is None
