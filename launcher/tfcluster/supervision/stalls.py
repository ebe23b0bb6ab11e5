"""Explains why no task takes a step: who is waited for, and where, from the stacks of all tasks.

Under a synchronous strategy one task that does not take its step stops all others, which then wait
in a collective. Their stacks look alike: they are inside TensorFlow. The task to name is the one
that is elsewhere: in a callback, in a generator that feeds the input, in a file, in a debugger.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.agent.tasks.stacks import MOST_FRAMES, OUTERMOST
from tfcluster.errors import join_first
from tfcluster.supervision.log_errors import is_foreign

_MOST_NAMED: Final = 3
_MOST_CODE: Final = 60

_STANDARD_LIBRARY: Final = re.compile(
    r"^<|/lib/python3(?:\.\d+)?/(?!site-packages/|dist-packages/)"
)
_EXECUTES: Final = re.compile(
    r"/tensorflow/python/(?:eager/(?:execute|context)"
    r"|ops/gen_\w+_ops|framework/(?:ops|tensor)|client/session"
    r"|distribute/coordinator/\w+|distribute/failure_handling/\w+|training/server_lib"
    r"|training/coordinator)\.py$"
)
"""Files of TensorFlow whose innermost frame means that native code runs or waits there:
`quick_execute` runs functions, `gen_…_ops` single operations, `_numpy` waits for a value."""
_EXECUTES_ELSEWHERE: Final = re.compile(
    r"/(?:jax/_src/(?:array|api|dispatch|profiler|interpreters/pxla)|keras/src/backend/jax/\w+"
    r"|torch/(?:distributed/distributed_c10d|autograd/graph))\.py$"
)
"""Such files of JAX, where `_value` waits for a result, of Keras on JAX, and of torch, where
`_engine_run_backward` waits for the gradients of all tasks."""
_TRACES: Final = re.compile(
    r"/tensorflow/python/(?:framework/func_graph|autograph/\w+/\w+"
    r"|eager/polymorphic_function/(?:autograph_util|tracing_compil\w+))\.py$"
)
"""Files of TensorFlow that are on the stack while a function is traced."""
_TRACING: Final = frozenset({"func_graph_from_py_func", "autograph_handler", "trace_function"})
_NEXT: Final = re.compile(
    r"(?:iterator|multi_device_iterator)_get_next|get_next_as_optional|_next_internal|make_iterator"
)
"""Functions of TensorFlow that start a data set, or wait for its next batch, outside of a
`tf.function`."""
_CALLS_PYTHON: Final = re.compile(r"/tensorflow/python/ops/script_ops\.py$")
"""The file of TensorFlow that calls Python from an input pipeline: generators, `py_function`."""
_SERVES: Final = re.compile(r"/tensorflow/python/training/server_lib\.py$")


class Activity(Enum):
    """The activities that stacks show; the texts follow the name of one task, and of several."""

    STOPPED = "was stopped", "were stopped"
    ELSEWHERE = "is", "are"
    AWAITS_INPUT = "waits for its input", "wait for their input"
    UNKNOWN = "does not answer", "do not answer"
    TRACES = "traces a function", "trace a function"
    EXITS = "has left its script and exits", "have left their scripts and exit"
    IN_STEP = "waits", "wait"
    """A step or an operation of TensorFlow, JAX or torch runs, or waits."""
    SERVES = "serves", "serve"


_CAUSES: Final = (
    *(Activity.STOPPED, Activity.ELSEWHERE, Activity.AWAITS_INPUT),
    *(Activity.TRACES, Activity.EXITS, Activity.UNKNOWN),
)
"""The activities of a task that the others wait for, the most certain cause first."""


@dataclass(frozen=True, slots=True)
class Position:
    """The place that a task is at, and what it does there."""

    activity: Activity
    file: str = ""
    """The file, line and code of the script's own innermost frame; empty where none is known."""
    line: int = 0
    code: str = ""
    detail: str = ""
    """The signal that stopped the task, or the reason why it does not answer."""
    calls: tuple[msg.Frame, ...] = field(default=(), compare=False)
    """The script's own frames, innermost first."""
    is_in_fit: bool = field(default=False, compare=False)
    """True inside of Keras's `fit`."""

    @property
    def place(self) -> str:
        """``train.py:12 `time.sleep` ``; empty if no line of the script is known."""
        return _place(self.file, self.line, self.code) if self.file else ""

    def describe(self, tasks: int = 1) -> str:
        """Return where a task is as the end of a sentence about it, or about several `tasks`."""
        text = self.activity.value[tasks > 1]
        if self.detail:
            return f"{text}{' by' if self.activity is Activity.STOPPED else ':'} {self.detail}"
        if self.place:
            return f"{text} in {self.place}"
        return f"{text} in code of a package" if self.activity is Activity.ELSEWHERE else text


@dataclass(frozen=True, slots=True)
class Stall:
    """The explanation of a stall."""

    what: str
    """One line: who is waited for and where."""
    causes: tuple[str, ...] = ()
    """The tasks that the others wait for; empty where that is not known."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """Task → where it is, in words."""


def position_of(threads: Sequence[msg.Thread], *, silence: str = "") -> Position:
    """Return where a task is, from the stacks of its threads, the main thread first.

    The main thread counts, unless it waits for one that works. Code that feeds the input runs in
    threads of TensorFlow, below `script_ops`.
    """
    if not threads:
        return Position(Activity.UNKNOWN, detail=silence)
    if _is_exiting(threads[0].frames):
        return Position(Activity.EXITS)
    positions = [_position_of_thread(thread.frames) for thread in threads]
    position = positions[0]
    if position.activity is Activity.ELSEWHERE and _only_waits(threads[0].frames):
        position = next((p for p in positions if p.activity is not Activity.ELSEWHERE), position)
    if position.activity in (Activity.IN_STEP, Activity.AWAITS_INPUT):
        for thread in threads[1:]:
            feeds = any(_CALLS_PYTHON.search(frame.file) for frame in thread.frames)
            own = _own_frames(thread.frames) if feeds else ()
            if own:
                return Position(Activity.AWAITS_INPUT, own[0].file, own[0].line, own[0].code)
    return position


def _is_exiting(frames: Sequence[msg.Frame]) -> bool:
    """Return whether a main thread waits for other threads, or runs handlers of `atexit`.

    Its outermost function is another one while the interpreter finalizes.
    """
    outermost = frames[-1]
    is_cut = len(frames) >= MOST_FRAMES
    return not is_cut and outermost.function not in OUTERMOST and is_foreign(outermost.file)


def _place(file: str, line: int, code: str) -> str:
    called = called_in(code)
    return f"{PurePath(file).name}:{line}" + (f" `{called}`" if called else "")


def _position_of_thread(frames: Sequence[msg.Frame]) -> Position:
    own = _own_frames(frames)
    at = (own[0].file, own[0].line, own[0].code) if own else ("", 0, "")
    files = (frame.file for frame in frames if frame.function == "fit")
    is_in_fit = any("keras" in file and is_foreign(file) for file in files)
    return Position(_activity_of(frames), *at, calls=own, is_in_fit=is_in_fit)


def _activity_of(frames: Sequence[msg.Frame]) -> Activity:
    """Return what a thread does: its innermost frame outside of the standard library decides."""
    first = next((f for f in frames if not _STANDARD_LIBRARY.search(f.file)), None)
    if first is not None and _EXECUTES_ELSEWHERE.search(first.file):
        return Activity.IN_STEP
    if first is None or "/tensorflow/" not in first.file:
        is_traced = any(frame.function in _TRACING for frame in frames)
        return Activity.TRACES if is_traced else Activity.ELSEWHERE
    if any(_NEXT.fullmatch(frame.function) for frame in frames[:8]):
        return Activity.AWAITS_INPUT
    if _SERVES.search(first.file):
        return Activity.SERVES
    # An eager collective is launched by other threads.
    is_collective = any("/distribute/cross_device_" in frame.file for frame in frames)
    if _EXECUTES.search(first.file) or is_collective:
        return Activity.IN_STEP
    is_traced = any(f.function in _TRACING or _TRACES.search(f.file) for f in frames)
    return Activity.TRACES if is_traced else Activity.ELSEWHERE


def _own_frames(frames: Sequence[msg.Frame]) -> tuple[msg.Frame, ...]:
    """Return the frames of the script's own code, innermost first."""
    return tuple(frame for frame in frames if not is_foreign(frame.file))


def _only_waits(frames: Sequence[msg.Frame]) -> bool:
    """Return whether a thread waits for another one of its process."""
    innermost = frames[0] if frames else None
    names = ("/threading.py", "/queue.py", "/concurrent/futures/", "/asyncio/")
    return innermost is not None and any(name in innermost.file for name in names)


def called_in(code: str) -> str:
    """Return the function that a line of source calls last, else the line itself, cut.

    A line may be the beginning of a statement.
    """
    for text in (code, f"{code} pass", f"{code} 0"):
        try:
            statements = ast.parse(text).body
        except (SyntaxError, ValueError):
            continue
        for node in (each for last in statements[-1:] for each in ast.walk(last)):
            if isinstance(node, ast.Call) and (name := _dotted(node.func)):
                return name
        break
    if match := re.search(r"([\w.]+)\([^()]*$", code):
        return match[1]
    return code if len(code) <= _MOST_CODE else f"{code[:_MOST_CODE]}…"


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else node.attr
    if isinstance(node, ast.Call):
        return f"{_dotted(node.func)}(…)"
    return node.id if isinstance(node, ast.Name) else ""


def explain_stall(
    positions: Mapping[str, Position], *, ended: Sequence[str] = (), together: bool
) -> Stall:
    """Return who is waited for and where, from the positions of the tasks that run.

    `ended`: tasks of the gang that have ended. `together`: the tasks take every step together, so
    that those inside TensorFlow wait for the others in an all-reduce.
    """
    where = " in an all-reduce" if together else ""
    tasks = {
        task: f"waits{where}" if together and at.activity is Activity.IN_STEP else at.describe()
        for task, at in positions.items()
    }
    inside = [task for task, at in positions.items() if at.activity is Activity.IN_STEP]
    for activity in _CAUSES:
        causes = [task for task, at in positions.items() if at.activity is activity]
        if causes and not (activity is Activity.UNKNOWN and len(causes) == len(positions)):
            texts = _grouped(causes, positions)
            if inside and together:
                them = "it" if len(causes) == 1 else "them"
                texts.append(f"{_names(inside)} {_wait(inside)} for {them}{where}")
            return Stall("; ".join(texts), tuple(causes), tasks)
    if ended and together:
        have = "has" if len(ended) == 1 else "have"
        return Stall(
            f"{_names(ended)} {have} ended; {_names(inside)} {_wait(inside)}{where}", (), tasks
        )
    return Stall(_without_cause(positions, together=together), (), tasks)


def _without_cause(positions: Mapping[str, Position], *, together: bool) -> str:
    """Return the line where all tasks are inside TensorFlow, or none has answered."""
    if all(at.activity is Activity.UNKNOWN for at in positions.values()):
        return "no task writes its stacks"
    inside = {task: at for task, at in positions.items() if at.activity is not Activity.SERVES}
    places: dict[str, list[str]] = {}
    for task, place in _where_they_part(inside).items():
        places.setdefault(place or "TensorFlow", []).append(task)
    texts = [f"{_names(tasks)} {_wait(tasks)} in {place}" for place, tasks in places.items()]
    if len(places) > 1 and together:
        return f"{', '.join(texts)}: each waits for the others"
    return f"{', '.join(texts)}" + (", for each other or for their input" if together else "")


def _where_they_part(positions: Mapping[str, Position]) -> dict[str, str]:
    """Return task → its place; of tasks at one place, the calls that led them there if they differ.

    Two loss functions may call the same all-reduce.
    """
    places = {task: at.place for task, at in positions.items()}
    if len({*places.values()}) == 1:
        for frames in zip(*(at.calls[::-1] for at in positions.values()), strict=False):
            calls = [_place(frame.file, frame.line, frame.code) for frame in frames]
            if len({*calls}) > 1:
                return dict(zip(places, calls, strict=True))
    return places


def _grouped(tasks: Sequence[str], positions: Mapping[str, Position]) -> list[str]:
    """Return a sentence for each group of `tasks` that are at one place, of the first places."""
    groups: dict[Position, list[str]] = {}
    for task in tasks:
        groups.setdefault(positions[task], []).append(task)
    texts = [f"{_names(names)} {at.describe(len(names))}" for at, names in groups.items()]
    more = len(texts) - _MOST_NAMED
    return [*texts[:_MOST_NAMED], *([f"{more} more places"] if more > 0 else [])]


def _names(tasks: Sequence[str]) -> str:
    return join_first(tasks, _MOST_NAMED)


def _wait(tasks: Sequence[str]) -> str:
    return "waits" if len(tasks) == 1 else "wait"
