"""Functions and cells of a real notebook run as workers, and fail with the lines of their cells."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .commandline import CommandLine
from .jobs.lab import PYTHONS
from .notebooks import Notebook, a_notebook, as_notebook, cells_of

PAGE = Path(__file__).parents[2] / "docs/guides/notebook.md"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Notebook]:
    with a_notebook() as made:
        assert made.run("import tfcluster, os").error == ""
        yield made


@pytest.fixture(scope="module")
def notebook(kernel: Notebook) -> Notebook:
    assert kernel.run("%load_ext tfcluster").error == ""
    return kernel


SCRIPT = """
import sys
from tfcluster_workers import reporting
reporting.progress(30, total=40, metrics={"loss": 0.5})
print("<b>", sys.argv[1:])
"""


def test_a_notebook_runs_as_a_script_with_a_live_view(kernel: Notebook) -> None:
    path = kernel.folder / "train.ipynb"
    path.write_text(as_notebook(SCRIPT))
    done = kernel.run("result = tfcluster.run('train.ipynb', args=['--epochs', '3'])")
    assert done.error == "", done.shown
    for text in (
        *('value="0.750"', "75%", "loss 0.5", "<td", "worker:1", "exit 0"),
        "&lt;b&gt; [&#x27;--epochs&#x27;, &#x27;3&#x27;]",
    ):
        assert text in done.html
    assert " │ <b> ['--epochs', '3']" in done.text
    for shown in ("result", "result.run", "tfcluster.runs()"):
        assert "<table>" in kernel.run(shown).html
    history = kernel.run("history = result.run.history()\nprint(*history, history['loss'])")
    assert history.text.startswith("task time step loss")
    path.unlink()


def test_a_function_of_a_cell_runs_on_the_workers(notebook: Notebook) -> None:
    notebook.run("scale = 3\nclass Box:\n    def __init__(self, x): self.x = x")
    done = notebook.run(
        "def f(x, *, y):\n"
        "    return Box((os.environ['TFCLUSTER_TASK'], x * scale + y))\n"
        "result = tfcluster.run(f, args=(2,), kwargs={'y': 1})\n"
        "print(result.value.x, isinstance(result.value, Box), result.status)"
    )
    assert done.text.splitlines()[-1] == "('worker:0', 7) True succeeded", done.shown
    assert list(notebook.folder.iterdir()) == []


def test_an_exception_of_a_function_names_cell_and_line(notebook: Notebook) -> None:
    done = notebook.run("def f():\n    return 1 / 0\ntfcluster.run(f)")
    assert done.error == "JobFailed"
    assert re.search(r"ZeroDivisionError: division by zero \(Cell In\[\d+\]:2\)", done.shown)
    assert "launcher/tfcluster" not in done.shown
    done = notebook.run("print(*tfcluster.get_run().logs())")
    assert "return 1 / 0" in done.text, "the log has the source of the cell's line"


def test_a_restart_calls_the_function_again(notebook: Notebook) -> None:
    done = notebook.run(
        "def f():\n"
        "    attempt = os.environ['TFCLUSTER_ATTEMPT']\n"
        "    if attempt == '1': os.kill(os.getpid(), 9)\n"
        "    return attempt\n"
        "sets = ['supervision.max_restarts=1', 'supervision.backoff_s=0.1']\n"
        "print(tfcluster.run(f, sets=sets).value)"
    )
    assert done.text.splitlines()[-1] == "2", done.shown


def test_what_cannot_be_sent_is_refused_before_the_start(notebook: Notebook) -> None:
    before = len(notebook.line.runs())
    done = notebook.run("tfcluster.run(print, args=(__import__('threading').Lock(),))")
    assert done.error == "FunctionError"
    assert "args[0] cannot be pickled" in done.shown
    assert len(notebook.line.runs()) == before


def test_a_cell_runs_on_the_workers_and_shares_only_what_is_named(notebook: Notebook) -> None:
    notebook.run("x, y = 5, 'not sent'")
    done = notebook.run(
        "%%tfcluster -n 3 --push x --pull z\n"
        "import os\n"
        "z = x + 1\n"
        "print(os.environ['TFCLUSTER_TASK'], z, '<b>', 'y' in globals())"
    )
    assert {f"worker:{n} │ worker:{n} 6 <b> False" for n in range(3)} < {*done.text.splitlines()}
    assert re.search(r"succeeded \d+\.\d s$", done.text, re.MULTILINE)
    assert "&lt;b&gt;" in done.html
    assert notebook.run("print(x, y, z)").text == "5 not sent 6\n"


def test_only_the_last_lines_of_a_cell_are_shown(notebook: Notebook) -> None:
    done = notebook.run("%%tfcluster -n 1\nfor n in range(100): print(n)")
    lines = done.text.splitlines()
    assert re.match(r"… 80 earlier lines: tfcluster logs cell-", lines[0])
    assert lines[1:21] == [f"worker:0 │ {n}" for n in range(80, 100)]


def test_a_failing_cell_shows_its_diagnosis(notebook: Notebook) -> None:
    done = notebook.run("%%tfcluster -n 2\ndef g():\n    raise ValueError('no data')\ng()")
    assert done.error == "JobFailed"
    assert re.search(r"^root cause: worker:[01], exit 1$", done.shown, re.MULTILINE)
    assert re.search(r"ValueError: no data \(Cell In\[\d+\]:3\)", done.shown)
    assert "    raise ValueError('no data')" in done.shown
    assert "launcher/tfcluster" not in done.shown


@pytest.mark.parametrize(
    ("line", "cell", "error"),
    [
        ("-n 0", "1", "Invalid value for '-n': 0 is not in the range x>=1"),
        ("--set 'a", "1", "%%tfcluster -n 1 --set 'a: No closing quotation"),
        ("--push no_such", "1", "the notebook does not define no_such (--push)"),
        ("--pull no_such", "1", "the cell does not define no_such (--pull)"),
        ("--set job.nothing=1", "1", "job.nothing"),
        ("", "x = = 1", "line 2\n    x = = 1\n        ^\nSyntaxError: invalid syntax"),
    ],
)
def test_a_mistake_is_shown_without_traceback(
    notebook: Notebook, line: str, cell: str, error: str
) -> None:
    done = notebook.run(f"%%tfcluster -n 1 {line}\n{cell}")
    assert error in done.shown
    assert "launcher/tfcluster" not in done.shown


def test_an_interrupt_stops_the_workers(notebook: Notebook) -> None:
    notebook.run(
        "import signal, threading, time\n"
        "def interrupt():\n"
        "    while not os.path.exists('started'): time.sleep(0.02)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()"
    )
    done = notebook.run("%%tfcluster -n 1\nopen('started', 'w')\nimport time\ntime.sleep(600)")
    assert (done.error, done.shown) == (
        "KeyboardInterrupt",
        "KeyboardInterrupt: the run was stopped",
    )
    assert done.text.startswith("interrupted")
    assert notebook.run("print(tfcluster.get_run().status)").text == "interrupted\n"
    Path(notebook.folder, "started").unlink()
    assert list(notebook.folder.iterdir()) == []


RECORD = """
from IPython.display import DisplayHandle

seen, update = [], DisplayHandle.update

def record(self, data, **options):
    seen.append(data["text/plain"])
    update(self, data, **options)

def interrupt(expected):
    for text in expected:
        while not any(text in shown for shown in seen): time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

DisplayHandle.update = record
threading.Thread(target=interrupt, args=[("stubborn", "a second interrupt kills at once")]).start()
"""


def test_the_view_goes_on_while_the_run_stops_and_a_second_interrupt_kills(
    notebook: Notebook,
) -> None:
    notebook.run(f"import signal, threading, time\n{RECORD}")
    done = notebook.run(
        "%%tfcluster -n 1 --set supervision.grace_s=100\n"
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('stubborn', flush=True)\n"
        "time.sleep(600)"
    )
    assert done.error == "KeyboardInterrupt"
    assert re.search(r"^interrupted \d", done.text, re.MULTILINE)
    assert re.search(r"^logs /.*/logs$", done.text, re.MULTILINE)
    stopping = notebook.run("DisplayHandle.update = update\nprint(*seen, sep='\\n')").text
    assert re.search(r"^stopping .* left, a second interrupt kills", stopping, re.MULTILINE)


TERMINAL = """
%load_ext tfcluster
get_ipython().run_cell_magic("tfcluster", "--pull z", "z = 4\\nprint('here', z)")
print("pulled", z)
"""


FAILING = """
%load_ext tfcluster
get_ipython().run_cell_magic("tfcluster", "", "raise ValueError('too long ' * 30)")
"""


def in_terminal(shell: CommandLine, source: str) -> tuple[int, str]:
    """Run the source in IPython in a terminal of 80 columns; return its exit code and text."""
    script = shell.script("session.ipy", source)
    user, program = os.openpty()
    env = {**shell.env, "IPYTHONDIR": str(shell.root / "ipython"), "COLUMNS": "80"}
    process = subprocess.Popen(
        [sys.executable, "-m", "IPython", "--no-banner", str(script)],
        stdin=program,
        stdout=program,
        stderr=program,
        env=env,
        cwd=shell.cwd,
    )
    os.close(program)
    seen = b""
    with contextlib.suppress(OSError):  # the terminal's other end was closed
        while block := os.read(user, 1 << 16):
            seen += block
    os.close(user)
    return process.wait(60), seen.decode().replace("\r", "")


def plain(text: str) -> str:
    """Remove the sequences that draw: which of them precede a line depends on when it arrives."""
    return re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", text)


def test_ipython_in_a_terminal_shows_the_live_view_and_the_end(shell: CommandLine) -> None:
    code, text = in_terminal(shell, TERMINAL)
    assert code == 0
    assert "worker:1 │\x1b[0m here 4" in text
    assert "worker:1 ended after" in text
    assert "pulled 4" in text
    assert re.search(r"succeeded \d+\.\d s\nlogs /.*/logs$", plain(text), re.MULTILINE)


def test_ipython_in_a_terminal_shows_a_failure_in_its_width(shell: CommandLine) -> None:
    _, text = in_terminal(shell, FAILING)
    panel = text[text.index("root cause: worker:") :]
    reason = panel[: panel.index("last ")].splitlines()
    assert len(reason) > 3
    assert max(map(len, reason)) <= 80
    assert re.search(r"failed \d+\.\d s\nlogs /.*/logs$", plain(text), re.MULTILINE)


# -- with TensorFlow -------------------------------------------------------------------------------


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_notebook_of_the_documentation() -> None:
    python = PYTHONS["newest"]
    with a_notebook() as notebook:
        outputs = []
        for cell in (cell for cell in cells_of(PAGE) if "import pandas" not in cell):
            cell = cell.replace("workers=2", f"workers=2, python={str(python)!r}")
            outputs.append(notebook.run(cell.replace("-n 2", f"-n 2 --python {python}")))
    trained, _, shared, printed, failed = outputs
    assert re.search(r"^loss \d\.\d+$", trained.text, re.MULTILINE), trained.shown
    assert re.search(r"^checkpoint /.*model\.keras$", trained.text, re.MULTILINE)
    assert re.search(r"<progress .*> 100%<", trained.html)
    assert "worker:1 │ worker:1 takes 32" in shared.text, shared.shown
    assert printed.text == "a worker takes 32\n"
    assert re.search(r"FileNotFoundError: .*data\.csv' \(Cell In\[5\]:3\)", failed.shown)
