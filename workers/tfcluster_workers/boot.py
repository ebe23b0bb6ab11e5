"""The program that every task starts: prepares reporting, then runs the user's script.

    python …/tfcluster_workers/boot.py script /abs/main.py ARGS…
    python …/tfcluster_workers/boot.py script /abs/train.ipynb ARGS…
    python …/tfcluster_workers/boot.py module package.module ARGS…
    python …/tfcluster_workers/boot.py preload MODULE…          see `preload`

The script runs as `__main__` and must not notice a difference: argv, `sys.path[0]`, `__main__`,
exit code and traceback are those of `python main.py`. TensorFlow is not imported here; reporting
attaches when the script itself imports TensorFlow or Keras.
"""

from __future__ import annotations
import __future__

import importlib.machinery
import io
import os
import sys
from types import ModuleType

TYPE_CHECKING = False  # a task that does not need `typing` starts a quarter sooner without it
if TYPE_CHECKING:
    from typing import NoReturn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> None:
    """Run the script, module or folder that `sys.argv` names as `__main__`."""
    if sys.argv[1] == "preload":
        wait_for_task()
    kind, target, *arguments = sys.argv[1:]
    load_own_package()
    from tfcluster_workers import debugging, stack_dumps
    from tfcluster_workers.preload import script_paths

    stack_dumps.begin()
    debugging.begin()
    prepare_reporting()
    present_as_plain_python(kind, target, arguments)
    try:
        inject_start_faults()
        if target == "tfcluster_workers.function":
            run_function(*arguments)
        elif kind == "module":
            run_module(target)
        elif os.path.isdir(target) or script_paths.is_archive(target):
            run_folder(target)
        elif target.endswith(".ipynb"):
            run_notebook(target)
        else:
            run_script(target)
    except (SystemExit, KeyboardInterrupt) as error:
        code = getattr(error, "code", 1)
        if not isinstance(code, (int, type(None))):
            report(error)  # `sys.exit("no data")` gives the reason of the failure
        note_failure(code if isinstance(code, int) else int(code is not None))
        hide_own_frames()
        raise
    except BaseException as error:
        report(error)
        note_failure(1)
        hide_own_frames()
        raise


def wait_for_task() -> None:
    """Import the modules in `sys.argv`; returns in a fork of this process, with a task's argv."""
    load_own_package()
    from tfcluster_workers import children, debugging, event_channel, stack_dumps  # noqa: F401
    from tfcluster_workers.hooks import import_hooks, tf_config_changes  # noqa: F401
    from tfcluster_workers.preload import script_paths  # noqa: F401
    from tfcluster_workers.saving import written_files  # noqa: F401

    initial_modules = frozenset(sys.modules)
    from tfcluster_workers.preload import importer

    importer.become_task(sys.argv[2:], initial_modules, is_path_safe=is_path_safe())


def load_own_package() -> None:
    """Import the tfcluster_workers that this file belongs to, not an installed one."""
    script_folder = [] if is_path_safe() else sys.path[:1]
    sys.path[: len(script_folder)] = [ROOT]
    import tfcluster_workers  # noqa: F401

    sys.path[:1] = script_folder
    if ROOT not in sys.path:
        sys.path.append(ROOT)


def is_path_safe() -> bool:
    """Return whether Python keeps the script's folder off `sys.path` (-P, -I)."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def prepare_reporting() -> None:
    """Take over the agent's socket and attach the hooks that wait for TensorFlow or Keras."""
    from tfcluster_workers import children, event_channel
    from tfcluster_workers.hooks import import_hooks, tf_config_changes
    from tfcluster_workers.saving import written_files

    event_channel.install(event_channel.take_over(os.environ))
    has_agent = event_channel.current().is_open
    if has_agent and has_faults():
        from tfcluster_workers import chaos

        chaos.arm(os.environ)
    if has_agent:
        tf_config_changes.watch()
        written_files.watch()
    # A task that is started by hand reports to nobody, but its Keras must be patched as well.
    if has_agent or "TFCLUSTER_TASK" in os.environ:
        children.prepare(os.environ)
        import_hooks.attach()


def has_faults() -> bool:
    """Return whether this task has faults to inject; without any, `chaos` is not imported."""
    return '"chaos"' in os.environ.get("TFCLUSTER_SETTINGS", "")


def inject_start_faults() -> None:
    """Inject the faults of `--chaos '… at start'`."""
    if has_faults():
        from tfcluster_workers import chaos

        chaos.at_start()


def present_as_plain_python(kind: str, target: str, arguments: list[str]) -> None:
    """Make `sys.argv`, `sys.orig_argv` and `sys.path[0]` those of a bare interpreter."""
    from tfcluster_workers.preload import script_paths

    original = getattr(sys, "orig_argv", None)
    if original:
        program = ["-m", target] if kind == "module" else [target]
        options = original[: len(original) - len(sys.argv)]
        sys.orig_argv = [*options, *program, *arguments]
    sys.argv[:] = ["-m" if kind == "module" else target, *arguments]
    if not is_path_safe():
        sys.path[0] = os.getcwd() if kind == "module" else script_paths.folder_of(target)


def new_main_module() -> ModuleType:
    """Return a new `__main__`: pickling and multiprocessing look up the script's names in it."""
    module = ModuleType("__main__")
    vars(module).update(__builtins__=sys.modules["builtins"], __annotations__={})
    # This module must stay alive: its functions are running.
    sys.modules["tfcluster_workers.boot"] = sys.modules["__main__"]
    sys.modules["__main__"] = module
    return module


def run_script(path: str) -> None:
    """Run a script as `python path` does."""
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        exit_unreadable(path, error)
    module = new_main_module()
    vars(module).update(
        __file__=path,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    exec(compile(source, path, "exec", dont_inherit=True), vars(module))


def run_notebook(path: str) -> None:
    """Run the code cells of a notebook one after the other, without a kernel."""
    from tfcluster_workers import notebook

    try:
        cells = notebook.read(path)
    except OSError as error:
        exit_unreadable(path, error)
    module = new_main_module()
    vars(module).update(notebook.KERNEL_NAMES)
    # A mistake in the last cell is found before the first one has trained. As in a kernel, a
    # `from __future__ import` holds for the cells below it, too.
    programs, futures = [], 0
    for name, code in cells.items():
        program = compile(code, name, "exec", flags=futures, dont_inherit=True)
        futures |= program.co_flags & __future__.annotations.compiler_flag
        programs.append(program)
    for program in programs:
        exec(program, vars(module))


def exit_unreadable(path: str, error: OSError) -> NoReturn:
    """Exit with the message and the code of a bare interpreter."""
    sys.stderr.write(
        f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n"
    )
    raise SystemExit(2)


def run_module(name: str) -> None:
    """Run a module as `python -m name` does; a package runs its `__main__`."""
    import runpy

    new_main_module()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def run_function(folder: str) -> None:
    """Call a function of another process, without runpy's frames in its tracebacks."""
    from tfcluster_workers import function

    new_main_module()
    function.main(folder)


def run_folder(path: str) -> None:
    """Run a folder or archive with a `__main__.py` as `python path` does."""
    import runpy

    new_main_module()
    runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]


def note_failure(code: int) -> None:
    """Note the exit code for what waits for other tasks at the exit of this one."""
    sys.modules.get("tfcluster_workers.boot", sys.modules["__main__"]).failed_with = code  # type: ignore[attr-defined]


def report(error: BaseException) -> None:
    """Send the `error` event."""
    from tfcluster_workers import failures

    failures.report_safely(error)


def hide_own_frames() -> None:
    """Have the uncaught exception printed as a bare interpreter prints it."""
    from tfcluster_workers import failures

    failures.hide_own_frames()


if __name__ == "__main__":
    main()
