"""The excerpt of a failed task's log shows the script's lines and the exception first."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tfcluster.ui.log_excerpt import excerpt

ABSL = "I0000 00:00:1795784384.891679   26055 "
ERROR = "E0000 00:00:1795784384.891679   26055 "
OWN = "2026-11-27 13:00:55.433976: E tensorflow/core/common_runtime/"
NATIVE = [f"{ABSL}port.cc:153] oneDNN custom operations are on. {n}" for n in range(9)]
SCRIPT = [f"line {n}" for n in range(4)]


def of(tmp_path: Path, log: str, count: int = 20) -> list[str]:
    path = tmp_path / "worker-0.log"
    path.write_text(log)
    return list(excerpt(path, count))


def lines(*parts: list[str]) -> str:
    return "".join(f"{line}\n" for part in parts for line in part)


def test_the_lines_are_the_scripts_and_the_very_last_native_ones(tmp_path: Path) -> None:
    assert of(tmp_path, lines(NATIVE, SCRIPT)) == SCRIPT
    assert of(tmp_path, lines(SCRIPT, NATIVE)) == [*SCRIPT, *NATIVE[-3:]]
    assert of(tmp_path, lines(SCRIPT[:2], NATIVE, SCRIPT[2:]), 3) == SCRIPT[1:]
    assert of(tmp_path, lines(NATIVE), 5) == NATIVE[-5:]
    assert of(tmp_path, "") == []


def test_lines_are_sanitized_and_cut(tmp_path: Path) -> None:
    numbered = "".join(f"line {n}\n" for n in range(50))
    assert of(tmp_path, f"{numbered}10%\r20%\nlast\x07", 3) == ["line 49", "20%", "last␇"]
    (cut,) = of(tmp_path, "x" * 1_000_000)
    assert cut == f"{'x' * 400} … ({256 * 1024:,} characters)"
    assert of(tmp_path, f"{'x' * 300_000}\nlast\n") == ["last"]  # not the rest of a line
    assert excerpt(tmp_path / "none.log") == ()


RAISED = f"""\
Epoch 1/2
19/20 [=====>.] - loss: 1.8240{OWN}base_collective_executor.cc:249] Executor::StartAbort X
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling
:{{"created":"@1795784397.474749144","grpc_message":"Socket closed"}}
{ERROR}grpc_server.cc:52] bind: Address already in use
Traceback (most recent call last):
  File "/job/train.py", line 13, in <module>
    model.fit(data, epochs=2,
    ^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/env/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in handler
    raise e.with_traceback(filtered_tb) from None
  File "/usr/lib/python3.11/multiprocessing/pool.py", line 367, in map
    return self._map_async(func, iterable, mapstar, chunksize).get()
  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
tensorflow.python.framework.errors_impl.InvalidArgumentError: {{{{function_node __wrapped__X}}}} no
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling
:UNKNOWN:Error received from peer  {{grpc_status:3, grpc_message:"no"}}
The error could be from a previous operation. Restart your program to reset. [Op:X] name:
{OWN}ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: Socket closed
"""


def test_an_exception_keeps_its_lines_of_the_script_and_the_native_error_before_it(
    tmp_path: Path,
) -> None:
    assert of(tmp_path, RAISED) == [
        "Epoch 1/2",
        "19/20 [=====>.] - loss: 1.8240",
        f"{ERROR}grpc_server.cc:52] bind: Address already in use",
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 13, in <module>',
        "    model.fit(data, epochs=2,",
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^",
        "  … 2 frames in keras, Python",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: no [Op:X]",
    ]


GRAPH = """\
Traceback (most recent call last):
  File "/job/train.py", line 31, in <module>
    step(batch)
  File "/env/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", line 53, in execute
    tensors = pywrap_tfe.TFE_Py_Execute(ctx._handle, device_name, op_name,
tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:

Detected at node assert/Assert defined at (most recent call last):
<stack traces unavailable>
Detected at node MatMul defined at (most recent call last):
  File "/bundle/workers/tfcluster_workers/boot.py", line 232, in <module>

  File "/job/train.py", line 20, in step

assertion failed: [label too big]
"""


def test_the_stack_of_a_graph_keeps_the_lines_of_the_script(tmp_path: Path) -> None:
    assert of(tmp_path, GRAPH)[3:] == [
        "  … 1 frame in tensorflow",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Detected at node MatMul"
        " defined at (most recent call last):",
        "  … 1 frame in tfcluster",
        '  File "/job/train.py", line 20, in step',
        "",
        "assertion failed: [label too big]",
    ]


def test_the_stacks_of_a_crash_keep_the_lines_of_the_script(tmp_path: Path) -> None:
    log = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/env/lib/python3.11/site-packages/tensorflow/x.py", line 5 in call\n'
        '  File "/job/train.py", line 8 in <module>\n'
        '  File "/bundle/workers/tfcluster_workers/boot.py", line 9 in <module>\n'
    )
    assert of(tmp_path, log)[3:] == [
        "  … 1 frame in tensorflow",
        '  File "/job/train.py", line 8 in <module>',
        "  … 1 frame in tfcluster",
    ]


@pytest.mark.parametrize(
    ("dump", "shown"),
    [
        (
            "batch [[0.25 1.e-03 nan]\n" + " [-inf 2.5 3.]\n" * 60 + " [1. 2. 3.]]",
            [
                "batch [[0.25 1.e-03 nan]",
                " [-inf 2.5 3.]",
                "… 59 lines of numbers …",
                " [1. 2. 3.]]",
            ],
        ),
        ("1\n2\n3\nepoch 2\n4", ["1", "2", "3", "epoch 2", "4"]),
    ],
)
def test_dumps_of_arrays_are_folded(tmp_path: Path, dump: str, shown: list[str]) -> None:
    assert of(tmp_path, f"{dump}\n") == shown
    raised = of(tmp_path, f"Traceback (most recent call last):\nValueError: {dump}\n")
    assert raised == ["Traceback (most recent call last):", f"ValueError: {shown[0]}", *shown[1:]]


def test_both_ends_of_a_long_message_are_shown(tmp_path: Path) -> None:
    message = "\n".join(f"word {n}" for n in range(100))
    log = textwrap.dedent("""\
        Traceback (most recent call last):
          File "/job/train.py", line 3, in <module>
            main()
        ValueError: """)
    shown = of(tmp_path, f"starts\n{log}{message}\n", 9)
    assert shown == [
        *log.splitlines()[:3],
        "ValueError: word 0",
        "word 1",
        "word 2",
        "… 95 lines …",
        "word 98",
        "word 99",
    ]
