"""What a task really starts: prepares reporting, then runs the user's script as `__main__`.

    python …/tfcluster_workers/boot.py script /abs/main.py ARGS…
    python …/tfcluster_workers/boot.py module package.module ARGS…
    python …/tfcluster_workers/boot.py preload MODULE…          see `preload`

The script must not notice: same argv, `sys.path[0]`, `__main__`, exit code and traceback as
`python main.py`. Nothing of TensorFlow is imported here; reporting attaches when the script
itself imports TensorFlow or Keras.
"""

from __future__ import annotations

import faulthandler
import importlib.machinery
import io
import os
import signal
import sys
from types import ModuleType, TracebackType

TYPE_CHECKING = False  # a task that does not need `typing` starts a quarter sooner without it
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn, Optional

    ExceptHook = Callable[[type[BaseException], BaseException, Optional[TracebackType]], Any]

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def main() -> None:
    """Run what `sys.argv` names, as `__main__`."""
    if sys.argv[1] == "preload":
        wait_for_a_task()
    kind, target, *arguments = sys.argv[1:]
    dump_stacks_on_sigusr1()
    load_our_package()
    from tfcluster_workers import script_paths

    prepare_reporting()
    present_as_plain_python(kind, target, arguments)
    try:
        strike_at_start()
        if kind == "module":
            run_module(target)
        elif os.path.isdir(target) or script_paths.is_archive(target):
            run_folder(target)
        else:
            run_script(target)
    except (SystemExit, KeyboardInterrupt) as end:
        if not isinstance(getattr(end, "code", None), (int, type(None))):
            report(end)  # `sys.exit("no data")` tells why it failed
        hide_our_frames()
        raise
    except BaseException as error:
        report(error)
        hide_our_frames()
        raise


def wait_for_a_task() -> None:
    """Import what `sys.argv` names; returns in a fork of this process, with a task's `sys.argv`."""
    load_our_package()
    from tfcluster_workers import event_channel, import_hooks, script_paths  # noqa: F401
    from tfcluster_workers.hooks import tf_config_changes  # noqa: F401

    first = frozenset(sys.modules)
    from tfcluster_workers.preload import importer

    importer.become_task(sys.argv[2:], first, is_path_safe=is_path_safe())


def dump_stacks_on_sigusr1() -> None:
    """`kill -USR1` writes the stack of every thread to stderr, and the task goes on."""
    if sys.__stderr__ is not None:  # None when it was closed by whoever started us
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True)


def load_our_package() -> None:
    """Import the tfcluster_workers this file belongs to, whatever else is installed."""
    first = sys.path[:1]
    sys.path[:1] = [ROOT] if not is_path_safe() else [ROOT, *first]
    import tfcluster_workers  # noqa: F401

    sys.path[:1] = first if not is_path_safe() else []
    if ROOT not in sys.path:
        sys.path.append(ROOT)


def is_path_safe() -> bool:
    """Whether Python was told not to put the script's folder on `sys.path` (-P, -I)."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def prepare_reporting() -> None:
    """Adopt the agent's socket and wait for the script to import TensorFlow or Keras."""
    from tfcluster_workers import event_channel, import_hooks
    from tfcluster_workers.hooks import tf_config_changes

    event_channel.install(event_channel.take_over(os.environ))
    has_agent = event_channel.current().is_open
    if has_agent and is_rehearsal():
        from tfcluster_workers import chaos

        chaos.arm(os.environ)
    if has_agent:
        tf_config_changes.watch()
    # Of a task that is started by hand nobody hears, but its Keras has to be patched like others'.
    if has_agent or "TFCLUSTER_TASK" in os.environ:
        import_hooks.attach()


def is_rehearsal() -> bool:
    """Whether this task has faults to inject; without any, their module is not even imported."""
    return '"chaos"' in os.environ.get("TFCLUSTER_SETTINGS", "")


def strike_at_start() -> None:
    """The place of `--chaos '… at start'`."""
    if is_rehearsal():
        from tfcluster_workers import chaos

        chaos.at_start()


def present_as_plain_python(kind: str, target: str, arguments: list[str]) -> None:
    """Make `sys.argv`, `sys.orig_argv` and `sys.path[0]` those of a bare interpreter."""
    from tfcluster_workers import script_paths

    original = getattr(sys, "orig_argv", None)
    if original:
        what = ["-m", target] if kind == "module" else [target]
        options = original[: len(original) - len(sys.argv)]
        sys.orig_argv = [*options, *what, *arguments]
    sys.argv[:] = ["-m" if kind == "module" else target, *arguments]
    if not is_path_safe():
        sys.path[0] = os.getcwd() if kind == "module" else script_paths.folder_of(target)


def new_main_module() -> ModuleType:
    """A fresh `__main__`: pickling and multiprocessing look the script's names up in it."""
    module = ModuleType("__main__")
    vars(module).update(__builtins__=sys.modules["builtins"], __annotations__={})
    # Ours stays alive: its functions are running.
    sys.modules["tfcluster_workers.boot"] = sys.modules["__main__"]
    sys.modules["__main__"] = module
    return module


def run_script(path: str) -> None:
    """As `python path`."""
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        cannot_open(path, error)
    module = new_main_module()
    vars(module).update(
        __file__=path,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    exec(compile(source, path, "exec", dont_inherit=True), vars(module))


def cannot_open(path: str, error: OSError) -> NoReturn:
    sys.stderr.write(
        f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n"
    )
    raise SystemExit(2)


def run_module(name: str) -> None:
    """As `python -m name`; packages run their `__main__`."""
    import runpy

    new_main_module()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def run_folder(path: str) -> None:
    """As `python path` of a folder or archive that holds a `__main__.py`."""
    import runpy

    new_main_module()
    runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]


def report(error: BaseException) -> None:
    """Send the `error` event; a fault in doing so must not hide the user's own."""
    from tfcluster_workers import failures

    try:
        failures.report(error)
    except Exception as fault:
        sys.stderr.write(f"tfcluster could not report the error below: {fault!r}\n")


def hide_our_frames() -> None:
    """Have the exception on its way out printed as a bare interpreter prints it."""
    from tfcluster_workers import failures

    hook: ExceptHook = sys.excepthook

    def without_our_frames(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        users = failures.without_our_frames(error.with_traceback(traceback))
        hook(kind, error.with_traceback(users), users)

    sys.excepthook = without_our_frames


if __name__ == "__main__":
    main()
