"""`boot` runs a script exactly as `python script` does: the script sees no difference."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Boot

BOOT = Path(__file__).parents[2] / "workers" / "tfcluster_workers" / "boot.py"

LOOK = """
import __main__, json, os, sys
print(json.dumps({
    "argv": sys.argv, "first": sys.path[0], "file": __file__, "name": __name__,
    "spec": getattr(__spec__, "name", None), "package": __package__,
    "doc": __doc__, "cached": __cached__,
    "main": __main__.__dict__ is globals(), "orig": sys.orig_argv[1:] if hasattr(sys, "orig_argv")
    else None, "loader": type(__loader__).__name__, "names": sorted(globals()),
    "variable": os.environ.get("TFCLUSTER_EVENTS_FD"),
    "tensorflow": "tensorflow" in sys.modules or "numpy" in sys.modules,
}))
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.linux("the stand-in for macOS is in tracebacks")
def test_a_script_runs_as_under_plain_python(tmp_path: Path, python: str, boot: Boot) -> None:
    script = write(tmp_path, "code/main.py", '"""Its text."""\n' + LOOK)
    argv = [str(script), "--epochs", "3", "two words"]
    plain = subprocess.run(
        [python, *argv], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    seen = json.loads(boot("script", *argv, python=python).out)
    assert seen == json.loads(plain.stdout)
    assert seen["first"] == str(tmp_path / "code")
    assert seen["main"] is True
    assert seen["variable"] is None


@pytest.mark.linux("the stand-in for macOS is in tracebacks")
def test_a_module_runs_as_under_python_m(tmp_path: Path, python: str, boot: Boot) -> None:
    write(tmp_path, "pkg/__init__.py", "")
    write(tmp_path, "pkg/job.py", LOOK)
    plain = subprocess.run(
        [python, "-m", "pkg.job", "-n", "2"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(boot("module", "pkg.job", "-n", "2", python=python).out) == json.loads(
        plain.stdout
    )


def test_a_package_runs_its_main(tmp_path: Path, boot: Boot) -> None:
    write(tmp_path, "pkg/__init__.py", "")
    write(tmp_path, "pkg/__main__.py", "print(__name__, __package__, __spec__.name)")
    assert boot("module", "pkg").out == "__main__ pkg pkg.__main__\n"


def test_a_folder_runs_its_main(tmp_path: Path, boot: Boot) -> None:
    write(tmp_path, "app/__main__.py", "import beside")
    write(tmp_path, "app/beside.py", "print('beside')")
    assert boot("script", str(tmp_path / "app")).out == "beside\n"


def test_a_sibling_module_and_relative_outputs(tmp_path: Path, python: str, boot: Boot) -> None:
    write(tmp_path, "code/mnist_setup.py", "TEXT = 'of the sibling'")
    script = write(
        tmp_path, "code/main.py", "import mnist_setup\nopen('out.txt', 'w').write(mnist_setup.TEXT)"
    )
    assert boot("script", str(script), python=python).code == 0
    assert (tmp_path / "out.txt").read_text() == "of the sibling"


def test_a_linked_script_finds_the_modules_beside_its_target(tmp_path: Path, boot: Boot) -> None:
    write(tmp_path, "real/sibling.py", "print('found')")
    script = write(tmp_path, "real/main.py", "import sibling")
    (tmp_path / "link.py").symlink_to(script)
    assert boot("script", str(tmp_path / "link.py")).out == "found\n"


@pytest.mark.linux("the stand-in for macOS starts scripts in its own way")
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_finds_the_functions_of_the_script(
    tmp_path: Path, python: str, boot: Boot, method: str
) -> None:
    script = write(
        tmp_path,
        "main.py",
        "import multiprocessing as mp\n"
        "def square(n):\n    return n * n\n"
        "if __name__ == '__main__':\n"
        f"    with mp.get_context({method!r}).Pool(2) as pool:\n"
        "        print(pool.map(square, [1, 2, 3]))\n",
    )
    ended = boot("script", str(script), python=python)
    assert (ended.code, ended.out) == (0, "[1, 4, 9]\n"), ended.err


def test_what_the_script_defines_can_be_pickled(tmp_path: Path, boot: Boot) -> None:
    script = write(
        tmp_path,
        "main.py",
        "import pickle\nclass Thing: pass\nprint(type(pickle.loads(pickle.dumps(Thing()))))",
    )
    assert boot("script", str(script)).out == "<class '__main__.Thing'>\n"


@pytest.mark.parametrize(
    ("ending", "code", "stderr"),
    [
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(42)", 42, ""),
        ("import os; os._exit(7)", 7, ""),
        ("pass", 0, ""),
    ],
)
def test_the_exit_code_is_that_of_the_script(
    tmp_path: Path, python: str, boot: Boot, ending: str, code: int, stderr: str
) -> None:
    ended = boot("script", str(write(tmp_path, "main.py", ending)), python=python)
    assert (ended.code, ended.err, ended.events) == (code, stderr, [])


def test_the_message_that_a_script_exits_with_is_reported(
    tmp_path: Path, python: str, boot: Boot
) -> None:
    script = write(tmp_path, "main.py", "import sys\nsys.exit('no data in ./mnist')\n")
    ended = boot("script", str(script), python=python)
    assert (ended.code, ended.err) == (1, "no data in ./mnist\n")
    (error,) = ended.of("task_error")
    assert (error["exception"], error["message"]) == ("SystemExit", "no data in ./mnist")
    assert (error["file"], error["line"]) == (str(script), 2)


def test_a_reported_failure_is_not_reported_again_as_an_exit(tmp_path: Path, boot: Boot) -> None:
    code = "from tfcluster_workers.errors import JobError\n"
    code += "from tfcluster_workers.jobs.parts import job_errors\n"
    code += "with job_errors.exit_with_message('job'):\n    raise JobError('no such data')\n"
    ended = boot("script", str(write(tmp_path, "main.py", code)))
    assert (ended.code, ended.err) == (1, "job: no such data\n")
    assert [error["exception"] for error in ended.of("task_error")] == ["JobError"]


def test_atexit_and_finally_run(tmp_path: Path, boot: Boot) -> None:
    script = write(
        tmp_path,
        "main.py",
        "import atexit, sys\natexit.register(print, 'left')\n"
        "try:\n    sys.exit(3)\nfinally:\n    print('finally')",
    )
    ended = boot("script", str(script))
    assert (ended.code, ended.out) == (3, "finally\nleft\n")


@pytest.mark.linux("the stand-in for macOS is in tracebacks")
def test_an_uncaught_exception_prints_as_plain_python_and_is_reported(
    tmp_path: Path, python: str, boot: Boot
) -> None:
    script = write(
        tmp_path,
        "main.py",
        "import json\ndef load():\n    return json.loads('{')\n\nload()\n",
    )
    plain = subprocess.run([python, str(script)], capture_output=True, text=True, check=False)
    ended = boot("script", str(script), python=python)
    assert (ended.code, ended.err) == (1, plain.stderr)
    (error,) = ended.of("task_error")
    assert error["exception"] == "json.decoder.JSONDecodeError"
    assert (error["file"], error["line"]) == (str(script), 3), "the user's frame, not json's"
    assert error["traceback"] == plain.stderr


@pytest.mark.linux("the stand-in for macOS is in tracebacks")
def test_a_syntax_error_prints_as_plain_python(tmp_path: Path, boot: Boot) -> None:
    script = write(tmp_path, "main.py", "x = 1\nif x\n")
    plain = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    ended = boot("script", str(script))
    assert (ended.code, ended.err) == (1, plain.stderr)
    (error,) = ended.of("task_error")
    assert (error["file"], error["line"]) == (str(script), 2)


@pytest.mark.linux("the stand-in for macOS is in tracebacks")
def test_a_user_excepthook_gets_the_user_frames(tmp_path: Path, boot: Boot) -> None:
    script = write(
        tmp_path,
        "main.py",
        "import sys\nsys.excepthook = lambda kind, error, tb: "
        "print(kind.__name__, tb.tb_frame.f_code.co_filename, tb.tb_next)\n1/0",
    )
    ended = boot("script", str(script))
    assert (ended.code, ended.out) == (1, f"ZeroDivisionError {script} None\n")


def test_a_missing_script_gives_the_message_of_plain_python(tmp_path: Path, boot: Boot) -> None:
    ended = boot("script", str(tmp_path / "no.py"))
    assert ended.code == 2
    assert ended.err.endswith("no.py': [Errno 2] No such file or directory\n")


def test_an_interrupt_ends_the_task_by_its_signal(tmp_path: Path, boot: Boot) -> None:
    script = write(
        tmp_path, "main.py", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('no')"
    )
    ended = boot("script", str(script))
    assert ended.code == -signal.SIGINT
    assert "boot.py" not in ended.err
    assert ended.events == []


def test_pythonpath_and_sitecustomize_stay_in_force(
    tmp_path: Path, python: str, boot: Boot
) -> None:
    write(tmp_path, "extra/sitecustomize.py", "import builtins; builtins.CUSTOM = 'on'")
    write(tmp_path, "extra/library.py", "NAME = 'mine'")
    script = write(
        tmp_path,
        "main.py",
        "import library, os\nprint(CUSTOM, library.NAME, os.environ['PYTHONPATH'])",
    )
    extra = str(tmp_path / "extra")
    assert boot("script", str(script), python=python, env={"PYTHONPATH": extra}).out == (
        f"on mine {BOOT.parent / 'child_site'}:{extra}\n"
    )


def test_tfcluster_workers_comes_last_on_sys_path(tmp_path: Path, boot: Boot) -> None:
    script = write(
        tmp_path,
        "main.py",
        "import sys\nfrom tfcluster_workers import context\n"
        "print(sys.path[-1], context.current().task)",
    )
    root = str(BOOT.parents[1])
    assert root in boot("script", str(script)).out


def test_sigusr1_writes_the_stacks_and_the_task_continues(tmp_path: Path, boot: Boot) -> None:
    script = write(
        tmp_path,
        "main.py",
        "import os, signal\ndef here():\n    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "here()\nprint('on')",
    )
    ended = boot("script", str(script))
    assert (ended.code, ended.out) == (0, "on\n")
    assert "in here" in ended.err


CRASHES = """
import ctypes, faulthandler, sys
assert faulthandler.is_enabled()
if sys.argv[1:]:
    faulthandler.enable(open(sys.argv[1], "w"))
ctypes.string_at(0)
"""


def test_a_crash_writes_the_stacks_to_stderr_and_ends_by_the_same_signal(
    tmp_path: Path, boot: Boot
) -> None:
    script = tmp_path / "main.py"
    script.write_text(CRASHES)
    ended = boot("script", str(script))
    assert ended.code == -signal.SIGSEGV
    assert f'File "{script}", line 6 in <module>' in ended.err


def test_a_script_may_send_the_stacks_of_a_crash_elsewhere(tmp_path: Path, boot: Boot) -> None:
    script = tmp_path / "main.py"
    script.write_text(CRASHES)
    ended = boot("script", str(script), str(tmp_path / "own.txt"))
    assert ended.code == -signal.SIGSEGV
    assert "Fatal Python error" not in ended.err
    assert "line 6 in <module>" in (tmp_path / "own.txt").read_text()


@pytest.mark.parametrize("number", ["", "77", "not a number", "1"])
def test_a_descriptor_that_is_no_socket_is_left_alone(tmp_path: Path, number: str) -> None:
    script = write(tmp_path, "main.py", "raise ValueError('mine')")
    ended = subprocess.run(
        [sys.executable, str(BOOT), "script", str(script)],
        env={**os.environ, "TFCLUSTER_EVENTS_FD": number},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == "", "our JSON must never reach a user's file"
    assert ended.stderr.endswith("ValueError: mine\n")


@pytest.mark.parametrize(("task", "watched"), [("worker:1", True), (None, False)])
def test_keras_is_patched_in_a_task_started_by_hand(
    tmp_path: Path, task: str | None, watched: bool
) -> None:
    """A script that no launcher started is not patched."""
    script = write(
        tmp_path, "main.py", "import sys\nprint([type(f).__name__ for f in sys.meta_path])"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("TFCLUSTER")}
    env |= {"TFCLUSTER_TASK": task} if task else {}
    seen = subprocess.run(
        [sys.executable, BOOT, "script", script],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("PostImportFinder" in seen.stdout) is watched


def test_children_neither_inherit_nor_use_the_socket(tmp_path: Path, boot: Boot) -> None:
    script = write(
        tmp_path,
        "main.py",
        "import os, subprocess, sys\n"
        "if os.fork() == 0:\n    raise ValueError('of the forked child')\n"
        "os.wait()\n"
        "print(subprocess.run(['sh', '-c', 'ls -l /proc/self/fd | grep -c socket:'],\n"
        "    capture_output=True, text=True).stdout)",
    )
    ended = boot("script", str(script))
    assert (ended.code, ended.out.split(), ended.events) == (0, ["0"], [])


def test_a_long_traceback_fits_one_message(tmp_path: Path, boot: Boot) -> None:
    script = write(tmp_path, "main.py", "raise ValueError('ä' * 500_000)")
    (error,) = boot("script", str(script)).of("task_error")
    assert "characters left out" in error["message"]
    assert error["traceback"].startswith("Traceback")
