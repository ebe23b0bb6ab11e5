"""The lines that TensorFlow's native code writes at each start are known, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.ui.native_lines import (
    _FROM_TENSORFLOW,
    TABLE,
    NativeFilter,
    find_message,
)

LOGS = sorted((Path(__file__).parent / "native").glob("*.log"))
"""Logs: each line after ``+`` is shown, after ``-`` omitted; the first says where it is from."""
ABSL = b"I0000 00:00:1795436651.778970   26030 "
OWN = b"2026-11-23 12:23:46.900029: I "
BANNER = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"


SLOW_TO_SEARCH = (
    b"WARNING:tensorflow:From " + b"/site-packages/keras/x:" * 20_000 + b" is deprecated",
    ABSL + b"a/" * 200_000 + b"x.cc",
    ABSL + b"coordination_service.cc:1] /job:" + b" has" * 100_000,
    ABSL + b"coordination_service.cc:1] Barrier(" + b")" * 400_000 + b":1] ",
    OWN + b"tensorflow/local_rendezvous.cc:1] Local rendezvous is " + b": ABORTED" * 50_000,
)


def kept(*lines: bytes) -> list[bytes]:
    block = b"".join(line + b"\n" for line in lines)
    return NativeFilter()(block)[:-1].split(b"\n") if lines else []


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_lines_of_real_logs_are_told_apart(path: Path) -> None:
    marked = path.read_bytes()[:-1].split(b"\n")[1:]
    lines = [line[2:] for line in marked]
    shown = [line[2:] for line in marked if line.startswith(b"+")]
    native = NativeFilter()
    assert native(b"".join(line + b"\n" for line in lines)) == b"".join(s + b"\n" for s in shown)
    assert native.dropped == len(lines) - len(shown)


def test_each_entry_of_the_table_was_logged() -> None:
    lines = [line[2:] for path in LOGS for line in path.read_bytes().split(b"\n")]
    found = {message for line in lines if (message := find_message(line)) is not None}
    missing = [m.text for messages in TABLE.values() for m in messages if m not in found]
    assert missing == [
        _FROM_TENSORFLOW + rb"The name \S+ is deprecated\. Please use \S+ instead\.$"
    ]  # see the next test


def test_a_renamed_symbol_that_keras_uses_itself_is_omitted_with_the_empty_line_after_it() -> None:
    renamed = (
        b"/keras/src/losses.py:2976: The name tf.losses.sparse_softmax_cross_entropy is deprecated."
        b" Please use tf.compat.v1.losses.sparse_softmax_cross_entropy instead."
    )
    of_keras = b"WARNING:tensorflow:From /opt/tf/lib/python3.11/site-packages" + renamed
    of_script = b"WARNING:tensorflow:From /home/me" + renamed
    assert kept(of_keras, b"", b"step 1", b"") == [b"step 1", b""]
    assert kept(of_script, b"", b"step 1") == [of_script, b"", b"step 1"]


@pytest.mark.parametrize("size", [1, 7, 100, 4096])
def test_a_message_may_continue_in_the_next_block(size: int) -> None:
    marked = LOGS[0].read_bytes()[:-1].split(b"\n")[1:]
    lines = [line[2:] + b"\n" for line in marked]
    native = NativeFilter()
    blocks = [b"".join(lines[at : at + size]) for at in range(0, len(lines), size)]
    shown = b"".join(line for line, m in zip(lines, marked, strict=True) if m.startswith(b"+"))
    assert b"".join(map(native, blocks)) == shown


@pytest.mark.parametrize(
    "line",
    [
        ABSL + b"my_op.cc:12] oneDNN custom operations are on. ",
        ABSL + b"port.cc:153] another message",
        b"E0000 00:00:1795436651.778970   26030 port.cc:153] oneDNN custom operations are on. ",
        b"F0000 00:00:1795436651.778970   26030 cudart_stub.cc:31] Check failed: handle != nullptr",
        b"2026-11-23 12:23:46.900029: I my/port.cc:153] oneDNN custom operations are on. ",
        b"I1123 12:23:46.900029 139872 train.py:153] oneDNN custom operations are on. ",
        b"port.cc:153] oneDNN custom operations are on. ",
        b"> " + ABSL + b"port.cc:153] oneDNN custom operations are on. ",
        b"W1123 12:23:46.900029 139872 deprecation.py:350] From /opt/tf/x.py:1: old is deprecated",
        b"WARNING: All log messages are lost",
        b"WARNING:tensorflow:AutoGraph could not transform <function f> and will run it as-is.",
        b"INFO:tensorflow:loss = 2.3, step = 0",
        b"To enable the following instructions: AVX2, in other operations, rebuild TensorFlow with"
        b" the appropriate compiler flags.",
        b"/job:worker/replica:0/task:0",
        b"Instructions for updating:",
        BANNER * 5000,
        *SLOW_TO_SEARCH,
        b"E0000 00:00:1.5   260 grpc_server_lib.cc:433] UNKNOWN: Could not start gRPC server",
        b"2026-11-23 12:23:46.9: E tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc:433]"
        b" Started server with target: is not true of an error",
        b"W0000 00:00:1.5   260 bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory",
        b"E0000 00:00:1.5   260 coordination_service_agent.cc:381] Coordination agent is set to"
        b" ERROR: UNAVAILABLE: Failed to send RPC to coordination service.",
        b"E0000 00:00:1.5   260 coordination_service.cc:1208] /job:worker/replica:0/task:1 has"
        b" been set to ERROR in coordination service: UNAVAILABLE: Task heartbeat timeout.",
        b"I0000 00:00:1.5   260 coordination_service.cc:1472] Barrier(WaitForAllTasks::1::0) has"
        b" passed with status: DEADLINE_EXCEEDED: Barrier timed out.",
        b"W0000 00:00:1.5   260 local_rendezvous.cc:412] Local rendezvous is aborting with status:"
        b" RESOURCE_EXHAUSTED: OOM when allocating tensor",
        b"W0000 00:00:1.5   260 preemption_notifier.cc:90] SIGTERM caught at 2026-11-23",
        b"E0000 00:00:1.5   260 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error:"
        b" Failed call to cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported",
        b"E0000 00:00:1.5   260 cuda_dnn.cc:522] Could not create cudnn handle: INTERNAL_ERROR",
        b"W0000 00:00:1.5   260 gpu_device.cc:2340] Cannot dlopen some GPU libraries.",
        b"I0000 00:00:1.5   260 grpc_util.cc:86] Failed to Worker heartbeat.: UNAVAILABLE: Failed"
        b" to perform worker heartbeat: failed to connect to all addresses. Will retry in 1042ms.",
        b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is"
        b" : 3",
    ],
    ids=range(34),
)  # fmt: skip
def test_lines_that_resemble_native_ones_or_may_say_why_a_task_fails_are_shown(line: bytes) -> None:
    assert kept(line) == [line]


def test_only_the_lines_right_after_a_message_continue_it() -> None:
    stragglers = ABSL + b"coordination_service.cc:505] Example stragglers:"
    task = b"/job:worker/replica:0/task:0"
    assert kept(stragglers, task, task, b"step 1", task) == [b"step 1", task]
    options = OWN + b"tensorflow/core/distributed_runtime/eager/eager_service_impl.cc:318] SessionO"
    options += b"ptions: device_count {"
    assert kept(options, b'  key: "CPU"', b"}", b"", b"", b"}") == [b"", b"}"]
    assert kept(options, b"", b"step 1") == [b"", b"step 1"]
    assert kept(options, b"}", b"  epoch: 3") == [b"  epoch: 3"]
    for line in (b"epoch: 3", b"step: 120", b"done: true", b"model {", b"  a: 1"):
        debug = ABSL + b"eager_service_impl.cc:355] SessionOptions: goo.gle/debugonly"
        assert kept(debug, b"allow_soft_placement: true", line, b"") == [line, b""]
    assert kept(options.replace(b"device_count {", b""), b"  epoch: 3") == [b"  epoch: 3"]
    native = NativeFilter()
    assert native(stragglers + b"\n") == b""
    native.interrupt()
    assert native(task + b"\n") == task + b"\n"


app_lines = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.from_regex(rb"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d+ \w+\.(?:py|cc|h):\d+\] .{0,40}"),
    st.from_regex(rb"(?:step|epoch|loss)[ :=]\d+|\}|\w+ \{|  \w+: \d+|\w+: true"),
).map(lambda line: re.sub(rb"[\r\n]", b"", line))


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        (b"epoch 3: loss 0.2", True),
        (b"Use of the GPU begins", True),
        (b"instead of 2 workers, 3 train", True),
        (b"Use tf.keras instead.", False),
        (b"use `update_config_proto` instead.", False),
        (b"keep_dims is deprecated, use keepdims instead", False),
        (b"Track steps using a tf.Variable saved in checkpoint instead.", False),
    ],
)
def test_only_tensorflows_own_words_follow_its_instructions(line: bytes, is_shown: bool) -> None:
    head = b"WARNING:tensorflow:From /opt/tf/site-packages/tensorflow/x.py:1: f (from x) is"
    head += b" deprecated and will be removed in a future version."
    found = kept(head, b"Instructions for updating:", line, b"end")
    assert found == [line] * is_shown + [b"end"]


@given(st.lists(app_lines, min_size=1, max_size=20), st.integers(1, 3))
def test_an_applications_lines_are_never_omitted(lines: list[bytes], size: int) -> None:
    native, shown = NativeFilter(), b""
    for at in range(0, len(lines), size):
        shown += native(b"".join(line + b"\n" for line in lines[at : at + size]))
    assert shown == b"".join(line + b"\n" for line in lines)
    assert native.dropped == 0


@given(st.lists(app_lines.filter(lambda line: b"task:" not in line), min_size=1, max_size=5))
def test_an_applications_lines_between_native_ones_are_shown(lines: list[bytes]) -> None:
    native_line = ABSL + b"grpc_server_lib.cc:467] Started server with target: grpc://127.0.0.1:1"
    mixed = [part for line in lines for part in (native_line, line, BANNER)]
    assert kept(*mixed) == lines


def test_the_stacks_of_a_task_that_ends_are_omitted() -> None:
    head = b"Current thread 0x00007f63 (most recent call first):"
    lines = (head, b"  Garbage-collecting", b"  <no Python frame>", b"the last epoch")
    assert kept(*lines) == [b"the last epoch"]
