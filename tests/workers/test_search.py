"""A search in which every trial failed is a failure, though KerasTuner itself exits with 0.

The package is a stand-in with the shape of KerasTuner 1.4.7 (engine/base_tuner.py, oracle.py):
the real one is no part of this project's environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest


class Ended(Protocol):
    code: int
    out: str
    err: str
    events: list[dict[str, Any]]


class Boot(Protocol):
    def __call__(self, *argv: str, python: str = ...) -> Ended: ...


ENGINE = """
from types import SimpleNamespace as Trial

class BaseTuner:
    def __init__(self, *statuses):
        self.statuses = statuses
        self.oracle = Trial(trials={})

    def search(self, *fit_args, **fit_kwargs):
        for number, status in enumerate(self.statuses):
            message = "Traceback …\\nValueError: no such layer\\n"
            self.oracle.trials[str(number)] = Trial(
                status=status, message=None if status == "COMPLETED" else message
            )
"""
LAST = "the last one with ValueError: no such layer"


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        (["FAILED", "INVALID"], f"all 2 trials of the search failed; {LAST}"),
        (["INVALID"], f"the only trial of the search failed; {LAST}"),
        (["FAILED", "COMPLETED"], None),
        ([], None),
    ],
)
def test_a_search_is_judged_when_it_ends(
    tmp_path: Path, python: str, boot: Boot, statuses: list[str], reason: str | None
) -> None:
    for folder in (
        "keras_tuner",
        "keras_tuner/src",
        "keras_tuner/src/engine",
        "keras_tuner/engine",
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "keras_tuner/src/engine/base_tuner.py").write_text(ENGINE)
    alias = "from keras_tuner.src.engine.base_tuner import *\n"
    (tmp_path / "keras_tuner/engine/base_tuner.py").write_text(alias)
    (tmp_path / "main.py").write_text(
        "from keras_tuner.engine import base_tuner\n"
        f"base_tuner.BaseTuner(*{statuses!r}).search(1, epochs=2)\nprint('done')"
    )
    ended = boot("script", str(tmp_path / "main.py"), python=python)
    assert (ended.code, ended.out) == (0, "done\n"), ended.err
    verdict = {"type": "verdict", "ok": False, "reason": reason}
    assert ended.events == ([verdict] if reason else [])


def test_an_oracle_elsewhere_is_not_judged(tmp_path: Path, boot: Boot) -> None:
    (tmp_path / "main.py").write_text(
        "from tfcluster_workers import tuner_watch\n"
        "class Client:\n"
        "    __slots__ = ()\n"
        "    def __getattr__(self, name): raise AttributeError(f'{name} is not on the allowlist')\n"
        "print(tuner_watch.failure(Client()))"
    )
    assert boot("script", str(tmp_path / "main.py")).out == "None\n"
