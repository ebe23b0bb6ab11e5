"""Errors are reported with their message and their place in the user's code."""

from __future__ import annotations

import importlib
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster_workers import failures
from tfcluster_workers.errors import NoGpuError
from tfcluster_workers.keras3.release import Keras3Error

CONVERTED = "__autograph_generated_file1x2y.py"


def raised_in(file: str, error: BaseException) -> BaseException:
    """Return `error` with a traceback that ends in line 3 of `file`."""
    code = compile("\n\nraise error", file, "exec")
    try:
        exec(code, {"error": error})
    except type(error) as caught:
        return caught
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("name", "found"),
    [("pytest.no_such_part", f" (pytest {pytest.__version__})"), ("nothing.here", "")],
)
def test_a_package_without_the_part_that_is_imported_is_named(name: str, found: str) -> None:
    error = ModuleNotFoundError(f"No module named '{name}'", name=name)
    assert failures.message_of(error) == f"No module named '{name}'{found}"


def test_a_folder_that_hides_a_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wandb` makes such a folder in the working directory."""
    (tmp_path / "hidden_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        importlib.import_module("hidden_package.keras")
    message, cause = failures.message_of(caught.value), failures.cause_of(caught.value)
    monkeypatch.delitem(sys.modules, "hidden_package")
    assert cause == "only-a-folder"
    assert message.endswith(f" (hidden_package is only the folder {tmp_path / 'hidden_package'})")


def test_the_cause_of_an_own_error_is_found_below_what_wraps_it() -> None:
    wrapper = RuntimeError("in user code")
    wrapper.__context__ = NoGpuError("0", "cannot load libcuda.so.1", "driver")
    assert failures.cause_of(wrapper) == "no-gpu-driver"
    assert failures.cause_of(ValueError("another")) == ""


def test_an_error_in_a_tf_function_points_to_the_user_line() -> None:
    """The names are those of TensorFlow 2.15 and 2.21; the job `broken` tests both for real."""
    error = raised_in(f"/tmp/{CONVERTED}", ValueError("in user code:\n\n a stack"))
    stack = [
        SimpleNamespace(filename=f"{sysconfig.get_path('purelib')}/x.py", lineno=9),
        SimpleNamespace(filename="/home/anna/model.py", lineno=42),
        SimpleNamespace(filename="/home/anna/train.py", lineno=7),
    ]
    known = SimpleNamespace(translated_stack=stack, cause_message="ValueError: 756 and 784")
    error.ag_error_metadata = known  # type: ignore[attr-defined]

    assert failures.place(error) == ("/home/anna/model.py", 42)
    assert failures.message_of(error) == "756 and 784"


def test_a_converted_line_without_origin_is_not_the_user_line() -> None:
    error = raised_in(f"/tmp/{CONVERTED}", ValueError("no"))

    place = failures.place(error)
    assert place[0] == __file__
    assert failures.message_of(error) == "no"


OURS = str(Path(failures.__file__).parent)
USER, KERAS = "/home/anna/train.py", f"{sysconfig.get_path('purelib')}/keras/src"
FILTER = f"{KERAS}/utils/traceback_utils.py"


def raised_through(*files: str, error: BaseException) -> BaseException:
    """Return `error` with a traceback through line 3 of each of `files`; the last one raises it."""
    names: dict[str, Any] = {"inner": None, "error": error}
    for file in reversed(files):
        line = "inner()" if names["inner"] else "raise error"
        scope = dict(names)
        exec(compile(f"def call():\n\n    {line}", file, "exec"), scope)
        names["inner"] = scope["call"]
    try:
        names["inner"]()
    except type(error) as caught:
        caught.__traceback__ = caught.__traceback__ and caught.__traceback__.tb_next
        return caught
    raise AssertionError("nothing was raised")


def files_of(error: BaseException) -> list[str]:
    frames, tb = [], failures.without_own_frames(error)
    while tb is not None:
        frames.append(tb.tb_frame.f_code.co_filename)
        tb = tb.tb_next
    return frames


@pytest.mark.parametrize("wrapper", sorted(path.name for path in Path(OURS).glob("*.py")))
def test_an_error_of_keras_below_a_hook_points_to_the_user_line(
    wrapper: str,
) -> None:
    """Keras 3 removes its own frames, so that the traceback ends in the hook."""
    ours = f"{OURS}/{wrapper}"
    error = raised_through(USER, ours, FILTER, ours, error=ValueError("a shape"))

    assert failures.place(error) == (USER, 3)
    assert files_of(error) == [USER, FILTER]


def test_an_error_in_an_example_job_points_to_its_line() -> None:
    job, fit = f"{OURS}/jobs/keras_mnist.py", f"{OURS}/keras_watch.py"
    error = raised_through(job, fit, f"{KERAS}/trainer.py", error=ValueError("no"))
    assert failures.place(error) == (job, 3)


def test_a_cython_frame_is_not_user_code() -> None:
    error = raised_through(USER, "h5py/_objects.pyx", "h5py/h5f.pyx", error=BlockingIOError(11))
    assert failures.place(error) == (USER, 3)


def test_an_internal_error_keeps_its_frames() -> None:
    wrapper = f"{OURS}/keras3/trainer.py"
    files = (f"{OURS}/boot.py", USER, wrapper)
    assert files_of(raised_through(*files, error=AttributeError("x"))) == [USER, wrapper]
    meant = raised_through(*files, error=Keras3Error("the metric `top` …"))
    assert files_of(meant) == [USER]
