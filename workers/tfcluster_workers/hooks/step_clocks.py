"""Measures the parts of a step: in Python, and by timestamps in the graphs of `tf.function`s.

Keras's `fit` takes its batch inside of the function that trains, and gradients are summed there, so
Python sees neither. Each GetNext, and each all-reduce of a MultiWorkerMirroredStrategy, gets a
timestamp before and after it; their difference is added to a variable that `StepParts.note`
reads. The timestamp before an all-reduce waits for all gradients, so what overlaps with computing
them does not count, nor does the all-reduce of a single number before them.

A SavedModel cannot hold these variables. So a GetNext counts only in functions that TensorFlow does
not save anyway: those of Keras's `fit`, and those with the iterator of a distributed dataset.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Callable

from tfcluster_workers import context, reporting, step_parts
from tfcluster_workers.hooks.replacing import replaces
from tfcluster_workers.step_parts import GraphTimes

_lock = threading.Lock()
_tracing = threading.local()
"""`is_never_saved`: whether the functions that this thread traces are in no SavedModel."""
_clocks: dict[str, _Clock] = {}
"""Part → its clock in the graphs."""


_LOCAL = (
    *("_DefaultDistributionExtended", "OneDeviceExtended"),
    *("MirroredExtended", "CollectiveAllReduceExtended"),
)
"""The strategies whose graphs run in the process that traces them: those of parameter servers and
TPUs run elsewhere, and cannot reach a variable of this process."""


def _is_measured() -> bool:
    """Return whether this task's steps are its own: a coordinator's are those of workers."""
    return not context.current().cluster.get("ps")


def watch_functions(module: ModuleType) -> None:
    """Watch calls of `tf.function`s (polymorphic_function): in Python they are one part."""
    from tensorflow.python.eager.context import executing_eagerly

    reporting.parts.is_on = _is_measured()

    @replaces(vars(module)["Function"], "__call__")
    def call(stock: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not executing_eagerly():
            return stock(self, *args, **kwargs)
        with reporting.parts.of(step_parts.FUNCTION):
            return stock(self, *args, **kwargs)


def watch_tracing(module: ModuleType) -> None:
    """Watch the tracing of functions (func_graph): it is Python's work."""

    @replaces(module, "func_graph_from_py_func")
    def trace(stock: Any, *args: Any, **kwargs: Any) -> Any:
        with reporting.parts.of(step_parts.OTHER):
            return stock(*args, **kwargs)


@contextlib.contextmanager
def never_saved() -> Iterator[None]:
    """Measure the input of functions that are traced inside, as no SavedModel will have them."""
    before = getattr(_tracing, "is_never_saved", False)
    _tracing.is_never_saved = True
    try:
        yield
    finally:
        _tracing.is_never_saved = before


def watch_distributed_iterators(module: ModuleType) -> None:
    """Watch the iterators of distributed datasets (input_lib), which have one of each worker."""
    iterator = vars(module)["_SingleWorkerDatasetIteratorBase"]
    for name in ("get_next", "get_next_as_list", "get_next_as_optional_list"):
        _watch_distributed(iterator, name)


def _watch_distributed(iterator: Any, name: str) -> None:
    @replaces(iterator, name)
    def get_next(stock: Any, *args: Any, **kwargs: Any) -> Any:
        with never_saved():
            return stock(*args, **kwargs)


def watch_iterators(module: ModuleType) -> None:
    """Watch the iterators of datasets (iterator_ops), in Python and in graphs."""
    for name in ("_next_internal", "get_next_as_optional"):
        _watch_next(vars(module)["OwnedIterator"], name)


def _watch_next(iterator: Any, name: str) -> None:
    @replaces(iterator, name)
    def get_next(stock: Any, self: Any) -> Any:
        from tensorflow.python.eager.context import executing_eagerly
        from tensorflow.python.util import nest

        if not (executing_eagerly() or getattr(_tracing, "is_never_saved", False)):
            return stock(self)

        def components(element: Any) -> list[Any]:
            variant = getattr(element, "_variant_tensor", None)  # of an Optional
            if variant is not None:
                return [variant]
            return list(nest.flatten(element, expand_composites=True))

        return _measured(step_parts.INPUT, lambda: stock(self), components)


def watch_all_reduce(module: ModuleType) -> None:
    """Watch the all-reduces of CollectiveAllReduce (cross_device_ops)."""
    from tensorflow.python.util import nest

    def tensors(values: Any) -> list[Any]:
        return list(nest.flatten(values, expand_composites=True))

    reducer = vars(module)["CollectiveAllReduce"]

    @replaces(reducer, "_all_reduce")
    def all_reduce(
        stock: Any, self: Any, reduce_op: Any, value: Any, replica_id: int, *args: Any, **kw: Any
    ) -> Any:
        def reduce() -> Any:
            return stock(self, reduce_op, value, replica_id, *args, **kw)

        inputs = tensors(value)
        if not _has_ended_collective() and all(_is_scalar(each) for each in inputs):
            return reduce()  # it overlaps with computing the gradients; see `count_wait`
        # The replicas of this task's devices all have the same bytes.
        counted = inputs if replica_id == 0 else ()
        return _measured(step_parts.COLLECTIVE, reduce, tensors, inputs, counted)

    for name in ("_all_reduce_per_replica_values", "_batch_all_gather"):
        _watch_eager_collective(reducer, name)


def count_wait(since: Any, result: Any) -> None:
    """Count as collective the time from when `since` is there until `result` is there, too.

    `result` is that of an all-reduce which runs while `since` is computed.
    """
    began = _without_failing(
        step_parts.COLLECTIVE, lambda: _begin(step_parts.COLLECTIVE, [since], ())
    )
    if began is not None:
        timestamp, clock = began
        _without_failing(step_parts.COLLECTIVE, lambda: _end(timestamp, clock, [result, timestamp]))


def _has_ended_collective() -> bool:
    """Return whether the graph that is being made has a measured collective already."""
    from tensorflow.python.framework import ops

    return hasattr(ops.get_default_graph(), _ENDED)


def _is_scalar(tensor: Any) -> bool:
    return bool(tensor.shape.num_elements() == 1)


def _watch_eager_collective(reducer: Any, name: str) -> None:
    """Watch a collective outside of functions: other threads run it for the one that trains."""
    from tensorflow.python.eager.context import executing_eagerly

    @replaces(reducer, name)
    def run(stock: Any, *args: Any, **kwargs: Any) -> Any:
        if not executing_eagerly():
            return stock(*args, **kwargs)
        with reporting.parts.of(step_parts.COLLECTIVE):
            return stock(*args, **kwargs)


def _measured(
    part: str,
    call: Callable[[], Any],
    outputs: Callable[[Any], list[Any]],
    inputs: Sequence[Any] = (),
    counted: Sequence[Any] = (),
) -> Any:
    """Return `call()` whose time counts to `part`: now, or whenever the graph runs.

    The time begins when all `inputs` are there; `counted` are tensors whose bytes are counted.
    """
    from tensorflow.python.eager.context import executing_eagerly

    if executing_eagerly():
        with reporting.parts.of(part):
            return call()
    began = _without_failing(part, lambda: _begin(part, inputs, counted))
    if began is None:
        return call()
    timestamp, clock = began
    # What has no inputs may begin whenever it likes, even before the timestamp.
    with contextlib.nullcontext() if inputs else timestamp.graph.control_dependencies([timestamp]):
        result = call()
    _without_failing(part, lambda: _end(timestamp, clock, outputs(result)))
    return result


def _without_failing(part: str, measure: Callable[[], Any]) -> Any:
    try:
        return measure()
    except Exception as error:
        reporting.note(f"tfcluster cannot measure the {part} time of steps: {error!r}")


def _begin(part: str, inputs: Sequence[Any], counted: Sequence[Any]) -> tuple[Any, _Clock] | None:
    """Return the timestamp that waits for `inputs`, and the clock that it belongs to."""
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import control_flow_util, gen_logging_ops

    graph = ops.get_default_graph()
    is_function = graph.building_function and ops.executing_eagerly_outside_functions()
    strategy = type(distribute_lib.get_strategy().extended).__name__
    if (
        not reporting.parts.is_on
        or not is_function
        or strategy not in _LOCAL
        or control_flow_util.GraphOrParentsInXlaContext(graph)
    ):
        return None
    clock = _clock(part)
    # Several collectives may be ready at once, and each waits for the one before: that counts once.
    before = getattr(graph, _ENDED, []) if part == step_parts.COLLECTIVE else []
    with ops.device("CPU:0"), ops.control_dependencies([*_together(inputs), *before]):
        clock.count(counted)
        return gen_logging_ops.timestamp(), clock


def _end(began: Any, clock: _Clock, outputs: Sequence[Any]) -> None:
    """Add the time from the timestamp `began` until all `outputs` are there to the clock."""
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import gen_logging_ops

    with ops.device("CPU:0"):
        with ops.control_dependencies(_together(outputs)):
            ended = gen_logging_ops.timestamp()
        clock.add(began, ended)
    if clock.part == step_parts.COLLECTIVE:
        setattr(ops.get_default_graph(), _ENDED, [ended])


def _together(tensors: Sequence[Any]) -> Sequence[Any]:
    """Return what to wait for: one operation instead of many tensors on other devices."""
    from tensorflow.python.ops import control_flow_ops

    is_elsewhere = any(tensor.device and "CPU" not in tensor.device for tensor in tensors)
    return [control_flow_ops.group(*tensors)] if is_elsewhere else tensors


_ENDED = "_tfcluster_collective_ended"
"""The attribute of a graph with the timestamp after its last collective so far, in a list."""
_LEAST_BYTES = 1024
"""Smaller tensors than these, such as the question whether all have data, are not counted."""


class _Clock:
    """Variables that no model, strategy or checkpoint knows."""

    def __init__(self, part: str) -> None:
        self.part = part
        self._seconds = _variable(f"{part}_seconds")
        self._bytes = _variable(f"{part}_bytes")

    def add(self, began: Any, ended: Any) -> None:
        from tensorflow.python.ops import gen_resource_variable_ops as variables

        variables.assign_add_variable_op(self._seconds, ended - began)

    def count(self, tensors: Sequence[Any]) -> None:
        """Count the bytes of `tensors` with known shapes, whenever the graph runs."""
        from tensorflow.python.framework import constant_op, dtypes
        from tensorflow.python.ops import gen_resource_variable_ops as variables

        known = (each for each in tensors if each.shape.is_fully_defined())
        size = sum(each.shape.num_elements() * each.dtype.size for each in known)
        if size >= _LEAST_BYTES:
            value = constant_op.constant(float(size), dtypes.float64)
            variables.assign_add_variable_op(self._bytes, value)

    def read(self) -> tuple[float, float]:
        """Return the seconds and the bytes so far."""
        from tensorflow.python.eager.context import eager_mode
        from tensorflow.python.framework import dtypes
        from tensorflow.python.ops import gen_resource_variable_ops as variables

        with eager_mode():  # a step may end inside of a `tf.Graph`
            handles = (self._seconds, self._bytes)
            seconds, size = (variables.read_variable_op(h, dtypes.float64).numpy() for h in handles)
        return float(seconds), float(size)


def _variable(name: str) -> Any:
    """Return the handle of a new variable on this task's CPU."""
    from tensorflow.python.framework import constant_op, dtypes, ops
    from tensorflow.python.ops import gen_resource_variable_ops as variables

    with ops.init_scope(), ops.device("CPU:0"):
        handle = variables.var_handle_op(
            dtypes.float64, [], shared_name=f"tfcluster_step_{name}", container=""
        )
        variables.assign_variable_op(handle, constant_op.constant(0.0, dtypes.float64))
        return handle


def _clock(part: str) -> _Clock:
    with _lock:
        if part not in _clocks:
            _clocks[part] = _Clock(part)
            reporting.parts.read_graphs = _read
        return _clocks[part]


def _read() -> GraphTimes:
    input_s, _ = _read_clock(step_parts.INPUT)
    collective_s, reduced_bytes = _read_clock(step_parts.COLLECTIVE)
    return GraphTimes(input_s, collective_s, reduced_bytes)


def _read_clock(part: str) -> tuple[float, float]:
    clock = _clocks.get(part)
    return clock.read() if clock is not None else (0.0, 0.0)
