"""Reports weights that are NaN or infinite: a custom training loop may report no loss.

It checks the variables of which this task has computed gradients, on its own devices only, so that
no other task takes part. It does so when a loop takes its next batch, seldom enough to cost a
thousandth of the time, after each save, and when the script ends.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
import weakref
from typing import Any, Callable

from tfcluster_workers import reporting

MOST_BYTES = 256 * 1024 * 1024
"""The bytes that one check reads, the smallest variables first: NaN spreads to all of them."""
SHORTEST_S = 1.0
"""Shortest time between two checks of a loop."""
SHARE = 0.001
"""The share of a loop's time that its checks may take."""
_MOST_CALLS = 64
"""The number of calls of `GradientTape.gradient` that are told apart."""


class Weights:
    """The variables that this task trains, held weakly."""

    def __init__(
        self,
        report: Callable[[float], None],
        read: Callable[[Any], float],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare; `read` returns 0 for a variable that is finite, else NaN or infinity."""
        self._report, self._read, self._clock = report, read, clock
        self._calls: set[tuple[int, int]] = set()
        """Calls whose variables are known: without `tf.function`, each step makes them again."""
        self._variables: dict[int, weakref.ref[Any]] = {}
        self._due = 0.0
        self._is_bad = self._is_over = False

    def note(self, sources: Any, variables: Callable[[Any], list[Any]]) -> None:
        """Note the `variables` among the sources of a gradient."""
        is_list = isinstance(sources, (list, tuple)) and len(sources) > 0
        call = (id(sources[0]), len(sources)) if is_list else (id(sources), 0)
        if call not in self._calls and len(self._calls) < _MOST_CALLS:
            self._calls.add(call)
            self._variables.update((id(each), weakref.ref(each)) for each in variables(sources))

    def check_if_due(self) -> None:
        """Check the weights, unless that was done a short time ago."""
        if self._variables and self._clock() >= self._due:
            self.check()

    def check(self) -> None:
        """Check the weights, and report that they have become bad, or good again; that once."""
        if self._is_over or not self._variables:
            return
        began = self._clock()
        value = self._worst()
        now = self._clock()
        self._due = now + max(SHORTEST_S, (now - began) / SHARE)
        if (value != 0) is not self._is_bad:
            self._is_over, self._is_bad = self._is_bad, not self._is_bad
            self._report(value)

    def _worst(self) -> float:
        """Return NaN or an infinity if the weights have one, else 0."""
        found = {key: ref() for key, ref in self._variables.items()}
        alive = [variable for variable in found.values() if variable is not None]
        if len(alive) < len(found):  # a new variable may have the id of one that is gone
            self._variables = {id(each): weakref.ref(each) for each in alive}
            self._calls.clear()
        left, worst = MOST_BYTES, 0.0
        for variable in sorted(alive, key=_bytes_of):
            left -= _bytes_of(variable)
            if left < 0 or math.isnan(worst):
                break
            worst = self._read(variable) or worst
        return worst


def _bytes_of(variable: Any) -> int:
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.size)


def local_variables(sources: Any) -> list[Any]:
    """Return the floating-point variables among `sources` that are on this task's own devices."""
    from tensorflow.python.eager import context
    from tensorflow.python.ops import resource_variable_ops
    from tensorflow.python.util import nest

    this_task = context.context().host_address_space()
    own = tuple(f"{this_task}/device:{kind}:" for kind in ("CPU", "GPU"))
    components = map(_component, nest.flatten(sources))
    return [
        variable
        for variable in components
        if isinstance(variable, resource_variable_ops.BaseResourceVariable)
        and variable.device.startswith(own)
        and variable.dtype.is_floating
    ]


def _component(variable: Any) -> Any:
    """Return this task's own part of a variable of any Keras and strategy.

    None for one that is summed over the workers when it is read.
    """
    for name in ("_value", "_variable"):  # of Keras 3; of Keras 2 with mixed precision
        variable = vars(variable).get(name, variable) if hasattr(variable, "__dict__") else variable
    if getattr(getattr(variable, "synchronization", None), "name", "") == "ON_READ":
        return None
    parts = getattr(variable, "_values", None)
    return parts[0] if isinstance(parts, (list, tuple)) and parts else variable


def _read(variable: Any) -> float:
    import tensorflow as tf

    with tf.device(variable.device):
        value = variable.read_value()
        if tf.reduce_all(tf.math.is_finite(value)):
            return 0.0
        return math.nan if tf.reduce_any(tf.math.is_nan(value)) else math.inf


# -- this task's weights ----------------------------------------------------------------------

_weights = Weights(reporting.weights, _read)
_ends_with_check = _has_failed = False


def note(sources: Any) -> None:
    """Note the sources of a gradient. Never raises; cheap enough to call for each gradient."""
    global _ends_with_check
    _try(lambda: _weights.note(sources, local_variables))
    if not _ends_with_check:
        _ends_with_check = True
        atexit.register(_check_at_end)


def check_if_due() -> None:
    """Check the weights between two steps, unless that was done a short time ago. Never raises."""
    _check(_weights.check_if_due)


def check_saved() -> None:
    """Check the weights after a save. Never raises."""
    _check(_weights.check)


def _check_at_end() -> None:
    if not reporting.has_reported_error():  # else its devices may have failed
        _check(_weights.check)


def _check(check: Callable[[], None]) -> None:
    """Call `check` in the thread that trains, unless it builds a graph or runs one behind it."""
    context = sys.modules.get("tensorflow.python.eager.context")
    is_training = threading.current_thread() is threading.main_thread()
    if context is None or _has_failed or not is_training or not context.executing_eagerly():
        return
    if not context.is_async():
        _try(check)


def _try(work: Callable[[], None]) -> None:
    """Do `work`; if that fails, give up for good."""
    global _has_failed
    if _has_failed:
        return
    try:
        work()
    except Exception as error:
        _has_failed = True
        reporting.note(f"tfcluster cannot check the weights: {error!r}")
