"""Keeps threads out of the preloading process, and gives its forks the threads of a fresh process.

A fork has only the thread that forked. So libraries must not start threads when they are imported
in the preloading process, and in a task they must have as many as if the task had imported them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping
    from typing import Any

_SURVIVE_FORK = frozenset({"jemalloc_bg_thd"})
"""Names of threads that a fork may lack.

jemalloc since 5.1 gives this name to the threads that return its free memory (Arrow has it built
in). Before a fork it takes the lock that such a thread holds while it works, and in the child it
marks the threads as stopped and returns the memory when memory is freed (its
src/background_thread.c: background_thread_prefork1, background_thread_postfork_child; registered
with pthread_atfork)."""
_SETTLE_S = 0.2
"""A thread that has just started has no name yet, and one that has been joined may still be seen.
"""
_OPENBLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The variables that OpenBLAS reads, in its order (its README, "Setting the number of threads using
environment variables")."""
_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads", "openblas_set_num_threads",
)  # fmt: skip


def prevent(environ: MutableMapping[str, str]) -> None:
    """Set the variables with which the libraries imported from now on start no threads.

    OpenBLAS and NumExpr start their pools at import; `set_counts` undoes that in a fork. Arrow's
    jemalloc starts a thread that no fork needs: there, what the user has set stays.
    """
    environ["OPENBLAS_NUM_THREADS"] = environ["NUMEXPR_NUM_THREADS"] = "1"
    environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def unsafe() -> dict[int, str]:
    """Return the threads that forbid a fork, besides this one: their ids and names, maybe empty."""
    give_up_at = time.monotonic() + _SETTLE_S
    while found := dict(_unsafe_now()):
        if time.monotonic() >= give_up_at:
            break
        time.sleep(0.01)
    return found


def _unsafe_now() -> Iterator[tuple[int, str]]:
    own_name = _name_of(os.getpid())
    threading: Any = sys.modules.get("threading")
    of_python = {t.native_id: t.name for t in threading.enumerate()} if threading else {}
    for thread in map(int, os.listdir("/proc/self/task")):
        name = _name_of(thread)
        if thread != os.getpid() and name is not None and name not in _SURVIVE_FORK:
            yield thread, of_python.get(thread) or (name if name != own_name else "")


def _name_of(thread: int) -> str | None:
    try:
        with open(f"/proc/self/task/{thread}/comm") as file:
            return file.read().strip()
    except OSError:  # it has ended
        return None


def set_counts(environ: Mapping[str, str]) -> None:
    """Give the imported libraries the numbers of threads that they would have read at import."""
    if sys.platform == "linux":  # nothing is preloaded elsewhere
        cores = len(os.sched_getaffinity(0))
    else:
        cores = 1
    values = (environ[name] for name in _OPENBLAS_VARIABLES if environ.get(name, "").isdigit())
    openblas = min(int(next(values, 0)) or cores, cores)
    openmp = environ.get("OMP_NUM_THREADS", str(cores))
    for path in _libraries():
        name = os.path.basename(path)
        if "openblas" in name:
            _call_first(path, _OPENBLAS_SETTERS, openblas)
        elif name.startswith("libgomp") and openmp.isdigit() and int(openmp):
            _call_first(path, ("omp_set_num_threads",), int(openmp))
    numexpr: Any = sys.modules.get("numexpr")
    if hasattr(numexpr, "_init_num_threads"):
        with contextlib.suppress(ValueError):  # a number that its import would refuse
            numexpr.nthreads = numexpr._init_num_threads()


def _libraries() -> set[str]:
    with open("/proc/self/maps") as file:
        return {line[line.index("/") :].rstrip("\n") for line in file if "/" in line}


def _call_first(path: str, names: tuple[str, ...], count: int) -> None:
    """Call the first of the functions `names` that a loaded library has."""
    with contextlib.suppress(OSError):  # its file has been removed meanwhile
        library = ctypes.CDLL(path)
        for name in names:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(count)
                break
