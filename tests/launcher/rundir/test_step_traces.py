"""A trace is read without TensorFlow, and every moment of it counts once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.rundir.step_traces import OpTime, TraceError, TraceSummary, describe_trace, summarize

Events = Sequence[tuple[str, float, float]]
"""Names, begins and ends in milliseconds."""

TF_OP = 7


def varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def plane(name: str, lines: Mapping[str, Events], ops: Mapping[str, str] | None = None) -> bytes:
    """Return a plane of an XSpace; `ops`: kernel → the op that has started it."""
    names = sorted({event[0] for events in lines.values() for event in events})
    data = field(2, name)
    for thread, events in lines.items():
        line = field(2, thread) + field(3, 0)
        for event, begin, end in events:
            facts = field(1, names.index(event) + 1) + field(2, round(begin * 1e9))
            facts += field(3, round((end - begin) * 1e9))
            if ops:
                facts += field(4, field(1, TF_OP) + field(5, ops[event]))
            line += field(4, facts)
        data += field(3, line)
    for number, text in enumerate(names, start=1):
        data += field(4, field(1, number) + field(2, field(1, number) + field(2, text)))
    return field(1, data + field(5, field(1, TF_OP) + field(2, field(2, "tf_op"))))


def summary(folder: Path, *planes: bytes, seconds: float = 0.0) -> TraceSummary:
    path = folder / "worker-0.xplane.pb"
    path.write_bytes(b"".join(planes) + field(4, "a-host"))
    return summarize(path, seconds)


def milliseconds(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds * 1000, 6) for name, seconds in parts.items()}


HOST: dict[str, Events] = {
    "python": [
        ("train_function", 0, 100),
        ("EagerLocalExecute: IteratorGetNext", 0, 20),
        ("IteratorGetNextOp::DoCompute", 1, 19),
        ("EagerLocalExecute: __inference_step_204", 20, 90),
        ("EagerLocalExecute: AssignAddVariableOp", 92, 94),
    ],
    "tf_Compute/1": [
        ("StatefulPartitionedCall/dense/MatMul:_MklMatMul", 22, 40),
        ("ExecutorState::Process", 22, 40),
        ("while:While", 60, 70),
        ("while/body/Mul:Mul", 62, 66),
    ],
    "collective_ops/7": [("CollectiveReduceV2_1:CollectiveReduceV2", 30, 80)],
    "tf_data_private_threadpool/3": [("EagerPyFunc:EagerPyFunc", 0, 100)],
}


def test_every_moment_counts_once_and_overlapped_work_costs_nothing(tmp_path: Path) -> None:
    found = summary(tmp_path, plane("/host:CPU", HOST), seconds=0.1)
    assert milliseconds(found.parts) == {"compute": 30, "collective": 30, "input": 20, "idle": 20}
    assert found.seconds == 0.1


def test_an_op_has_its_own_time_and_that_of_no_op_inside_of_it(tmp_path: Path) -> None:
    ops = {op.name: op for op in summary(tmp_path, plane("/host:CPU", HOST)).ops}
    assert {name: round(op.seconds * 1000, 6) for name, op in ops.items()} == {
        "CollectiveReduceV2_1": 50,
        "IteratorGetNext": 20,
        "dense/MatMul": 18,
        "while": 6,
        "while/body/Mul": 4,
        "AssignAddVariableOp": 2,
    }
    get_next, matmul = ops["IteratorGetNext"], ops["dense/MatMul"]
    assert (get_next.part, get_next.count) == ("input", 1)
    assert (matmul.type, matmul.part) == ("_MklMatMul", "compute")


def test_with_a_gpu_its_kernels_are_the_compute(tmp_path: Path) -> None:
    kernels: dict[str, Events] = {
        "Stream #14(Compute)": [("sgemm_128x64", 30, 50)],
        "Stream #20": [("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 45, 70)],
        "Launch Stats": [("sgemm_128x64", 0, 100)],
    }
    of_kernel = {
        "sgemm_128x64": "StatefulPartitionedCall/dense/MatMul:MatMul",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "NcclAllReduce:NcclAllReduce",
    }
    host = {name: events for name, events in HOST.items() if name != "collective_ops/7"}
    gpu = plane("/device:GPU:0", kernels, of_kernel)
    found = summary(tmp_path, plane("/host:CPU", host), gpu, seconds=0.1)
    assert milliseconds(found.parts) == {"compute": 20, "collective": 20, "input": 20, "idle": 40}
    assert found.ops[0] == OpTime("NcclAllReduce", "NcclAllReduce", "collective", 1, 0.025)
    assert {op.name for op in found.ops[1:]} == {"dense/MatMul", "IteratorGetNext"}


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: b"\xff" * 40])
def test_a_damaged_trace_is_named(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "worker-0.xplane.pb"
    path.write_bytes(damage(plane("/host:CPU", HOST)))
    with pytest.raises(TraceError, match="worker-0"):
        summarize(path)
    facts = {"file": path.name, "bytes": path.stat().st_size, "seconds": 1.0}
    assert "is not a trace" in (describe_trace(tmp_path, facts) or {})["problem"]


@given(st.data())
def test_no_file_can_do_more_than_be_refused(data: st.DataObject) -> None:
    whole = bytearray(plane("/host:CPU", HOST) + plane("/device:GPU:0", HOST))
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker-0.xplane.pb"
        path.write_bytes(whole)
        with contextlib.suppress(TraceError):
            summarize(path)


def test_a_trace_that_has_not_arrived_whole_is_waited_for(tmp_path: Path) -> None:
    facts = {"file": "worker-0.xplane.pb", "bytes": 10, "seconds": 1.0, "first": 3, "last": 4}
    assert describe_trace(tmp_path, facts) is None
    (tmp_path / "worker-0.xplane.pb").write_bytes(b"half")
    assert describe_trace(tmp_path, facts) is None
    data = plane("/host:CPU", HOST)
    (tmp_path / "worker-0.xplane.pb").write_bytes(data)
    described = describe_trace(tmp_path, {**facts, "bytes": len(data)})
    assert described is not None
    assert (described["first"], described["last"], described["seconds"]) == (3, 4, 1.0)
