"""Where an error happened and what it says, as its user wrote the code."""

from __future__ import annotations

import sysconfig
from types import SimpleNamespace

from tfcluster_workers import failures

CONVERTED = "__autograph_generated_file1x2y.py"


def raised_in(file: str, error: BaseException) -> BaseException:
    """`error` with a traceback that ends in line 3 of `file`."""
    code = compile("\n\nraise error", file, "exec")
    try:
        exec(code, {"error": error})
    except type(error) as caught:
        return caught
    raise AssertionError("nothing was raised")


def test_an_error_in_a_tf_function_is_placed_in_the_users_own_line() -> None:
    """The names are those of TensorFlow 2.15 and 2.21; the job `broken` shows it with both."""
    error = raised_in(f"/tmp/{CONVERTED}", ValueError("in user code:\n\n a stack"))
    stack = [
        SimpleNamespace(filename=f"{sysconfig.get_path('purelib')}/x.py", lineno=9),
        SimpleNamespace(filename="/home/anna/model.py", lineno=42),
        SimpleNamespace(filename="/home/anna/train.py", lineno=7),
    ]
    known = SimpleNamespace(translated_stack=stack, cause_message="ValueError: 756 and 784")
    error.ag_error_metadata = known  # type: ignore[attr-defined]

    assert failures.place(error, error.__traceback__) == ("/home/anna/model.py", 42)
    assert failures.message_of(error) == "756 and 784"


def test_without_its_origin_a_converted_line_is_nobodys() -> None:
    error = raised_in(f"/tmp/{CONVERTED}", ValueError("no"))

    place = failures.place(error, error.__traceback__)
    assert place[0] == __file__
    assert failures.message_of(error) == "no"
