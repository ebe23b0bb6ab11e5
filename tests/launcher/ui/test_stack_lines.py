"""The stacks of tasks as `tfcluster stacks` prints them."""

from __future__ import annotations

from tfcluster.ui.history import format_stacks

FRAMES = [
    {"file": "/home/me/train.py", "line": 3, "function": "load", "code": "time.sleep(9)"},
    {"file": "/x/lib/python3.11/site-packages/keras/fit.py", "line": 7, "function": "fit"},
    {"file": "/c/bundles/0af1/workers/tfcluster_workers/boot.py", "line": 9, "function": "main"},
]
ANSWER = {
    "what": "worker:1 is in train.py:3 `time.sleep`; worker:0 waits for it in an all-reduce",
    "tasks": [
        {"task": "worker:0", "where": "does not answer", "threads": []},
        {"task": "worker:1", "where": "is in train.py:3 `time.sleep`", "threads": [FRAMES, FRAMES]},
    ],
}


def test_the_main_thread_of_each_task_is_shown_and_the_others_are_counted() -> None:
    assert format_stacks(ANSWER) == [
        ANSWER["what"],
        "",
        "worker:0 does not answer",
        "",
        "worker:1 is in train.py:3 `time.sleep`",
        "  main thread, innermost first:",
        "    /home/me/train.py:3 in load  time.sleep(9)",
        "    …/keras/fit.py:7 in fit",
        "    …/tfcluster_workers/boot.py:9 in main",
        "  1 more thread: --all-threads shows them",
    ]


def test_all_threads_are_shown_on_request() -> None:
    lines = format_stacks(ANSWER, all_threads=True)
    assert lines.count("    …/keras/fit.py:7 in fit") == 2
    assert "  thread 2, innermost first:" in lines
