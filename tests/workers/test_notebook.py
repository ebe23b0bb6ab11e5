"""A notebook runs cell by cell, without what only IPython understands, as a script does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfcluster_workers.notebook import to_python

from .conftest import Boot


def write(path: Path, *cells: str | list[str]) -> str:
    """Write a notebook with a text before each code cell, and one empty cell at the end."""
    listed = list[dict[str, Any]]()
    for source in (*cells, ""):
        listed.append({"cell_type": "markdown", "source": "# %text"})
        listed.append({"cell_type": "code", "source": source, "outputs": [{"text": "old"}]})
    path.write_text(json.dumps({"cells": listed, "nbformat": 4}))
    return str(path)


def test_the_cells_run_one_after_the_other_as_one_script(
    tmp_path: Path, python: str, boot: Boot
) -> None:
    (tmp_path / "beside.py").write_text("value = 4")
    path = write(
        tmp_path / "train.ipynb",
        ["%matplotlib inline\n", "import beside, os, sys\n", "print(__name__, sys.argv[1:])"],
        "",
        "%%bash\nexit 1",
        "%%time\ndisplay(beside.value)\n'google.colab' in str(get_ipython())",
        "import inspect\ndef f():\n    return os.environ['MPLBACKEND']\n",
        "print(f())\nprint(inspect.getsource(f))",
    )
    ended = boot("script", path, "--epochs", "3", python=python)
    shown = "__main__ ['--epochs', '3']\n4\nagg\ndef f():\n    return os.environ['MPLBACKEND']\n\n"
    assert (ended.code, ended.out, ended.err) == (0, shown, "")


@pytest.mark.linux("the stand-in for macOS is in tracebacks")
def test_an_exception_names_its_cell(tmp_path: Path, python: str, boot: Boot) -> None:
    path = write(tmp_path / "train.ipynb", "", "def f():\n    return 1 / 0", "!ls\nf()")
    ended = boot("script", path, python=python)
    (error,) = ended.of("task_error")
    assert (ended.code, error["file"], error["line"]) == (1, "train.ipynb cell 1", 2)
    frames = [line for line in ended.err.splitlines() if "File" in line or "return" in line]
    assert frames == [
        '  File "train.ipynb cell 2", line 2, in <module>',
        '  File "train.ipynb cell 1", line 2, in f',
        "    return 1 / 0",
    ]


def test_a_syntax_error_of_the_last_cell_comes_before_the_first_cell(
    tmp_path: Path, boot: Boot
) -> None:
    ended = boot("script", write(tmp_path / "train.ipynb", "print('trained')", "x = = 1"))
    (error,) = ended.of("task_error")
    assert (ended.out, error["file"], error["line"]) == ("", "train.ipynb cell 2", 1)
    assert "boot.py" not in ended.err


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("%cd x\n!ls\nx = 1", "pass  # %cd x\npass  # !ls\nx = 1"),
        ("if x:\n    !ls a \\\n        b\ny", "if x:\n    pass  # !ls a \\\n#         b\ny"),
        ("files = !ls\nh = %time f(x)\n%time g()", "pass  # files = !ls\nh = f(x)\ng()"),
        ("f?\n?f\nm.fit??", "pass  # f?\npass  # ?f\npass  # m.fit??"),
        ("x = 1  # why?\n# why?\na != b", "x = 1  # why?\n# why?\na != b"),
        # continued statements, as Black breaks them, and text
        ("x = (a\n     % b)\ny = a \\\n % b", "x = (a\n     % b)\ny = a \\\n % b"),
        ('css = """\n%a\n!b\nreally?\n"""\n%a', 'css = """\n%a\n!b\nreally?\n"""\npass  # %a'),
        ("x = 1\n  %a\n y", "x = 1\n  pass  # %a\n y"),  # no Python: the task says so
        ("%%time\nx\n%a", "# %%time\nx\npass  # %a"),
        ("\n%%writefile a.py\nx = 1", "# \n# %%writefile a.py\n# x = 1"),
        ("%%html\n<b>", "# %%html\n# <b>"),
    ],
)  # fmt: skip
def test_only_what_ipython_alone_understands_is_left_out(cell: str, python: str) -> None:
    assert to_python(cell) == f"{python}\n"
