"""Starts a real TensorFlow job by hand, and with tfcluster cold, preloaded and warm."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from benchmarks.harness import Arm, Failed, Taken
from benchmarks.launchers import LAUNCHERS, ROOT, Gang, Launcher
from benchmarks.sandbox import TFCLUSTER, Sandbox, sandbox

SCRIPT = Path(__file__).with_name("train.py")
_OPTIONS: Mapping[str, Sequence[str]] = {
    "tfcluster": (),
    "cold": ("--set", "runtime.preload=off"),
    "preload": ("--set", "runtime.preload=on"),
    "warm": ("--set", "runtime.preload=on", "--warm"),
}


@dataclass(frozen=True, slots=True)
class Started:
    """A training that has been started."""

    box: Sandbox
    process: subprocess.Popen[bytes]
    began: float
    """The time of the start, on the monotonic clock."""

    def wait_for(self, pattern: str, count: int) -> list[list[float]]:
        """Wait for `count` files that the workers write; return the numbers in them."""
        folder = self.box.folder

        def found() -> list[Path]:
            return [path for path in folder.glob(pattern) if path.suffix != ".new"]

        self.box.until(lambda: len(found()) == count, pattern, process=self.process)
        return [[float(word) for word in path.read_text().split()] for path in found()]


Look = Callable[[Started], Taken]
"""A function that measures a training."""


@dataclass(frozen=True, slots=True)
class Training:
    """Workers of `train.py` in one of the environments that `make setup` makes."""

    venv: str
    workers: int
    args: tuple[str, ...]
    restarts: int = 0

    def arms(self, look: Look, *names: str) -> dict[str, Arm]:
        """Return arms by name: `shell`, `cold`, `preload`, `warm`, or `tfcluster` (no options)."""
        return {name: self.arm(name, look, _OPTIONS.get(name, ())) for name in names}

    @property
    def _python(self) -> str:
        return str(ROOT / self.venv / "bin" / "python")

    @property
    def _env(self) -> Mapping[str, str]:
        """The extra environment: Keras 2, since Keras 3 needs a patch under this strategy."""
        return {"TF_USE_LEGACY_KERAS": "1"} if _version(self.venv, "tf_keras") else {}

    def arm(self, name: str, look: Look, options: Sequence[str]) -> Arm:
        """Return one arm; all but `shell` are `tfcluster up` with these options."""
        version = _version(self.venv, "tensorflow")
        typed = " ".join([*options, "bench.json"])
        shown = self._by_hand.shown if name == "shell" else f"tfcluster up {typed}"
        missing = "" if version else f"no TensorFlow in {self.venv}"
        return Arm(
            partial(self._take, name, look, options),
            shown.replace("COMMAND", f"python train.py {' '.join(self.args)}"),
            f"TensorFlow {version}",
            missing or _unknown(name),
        )

    @property
    def _by_hand(self) -> Launcher:
        return LAUNCHERS["bare loop" if self.restarts else "shell"]

    def _take(self, name: str, look: Look, options: Sequence[str]) -> Taken:
        with sandbox() as box, ExitStack() as last:
            shutil.copy(SCRIPT, box.folder)
            command = self._command(name, box, options)
            if name == "warm":
                last.callback(_cool, box)
                box.end(box.start(command, env=self._env))  # leaves a warm preloader for the next
                for stamp in box.folder.glob("step-*"):
                    stamp.unlink()
            began = time.monotonic()
            return look(Started(box, box.start(command, env=self._env), began))

    def _command(self, name: str, box: Sandbox, options: Sequence[str]) -> list[str]:
        command = [self._python, SCRIPT.name, *self.args]
        job = {"script": SCRIPT.name, "args": list(self.args)}
        gang = Gang(self.workers, command, self.restarts, spec={"job": job})
        if name == "shell":
            return self._by_hand.command(box.folder, gang)
        up = LAUNCHERS["tfcluster"].command(box.folder, gang)
        return [*up, "--python", self._python, *options]


def _cool(box: Sandbox) -> None:
    """End the warm preloader of a run, which would use memory during the next arm."""
    done = subprocess.run([TFCLUSTER, "down", "--warm"], env=box.env, capture_output=True)
    if done.returncode:
        raise Failed(f"down --warm: {done.stderr.decode()}")


def _unknown(name: str) -> str:
    needs = {"preload": "preload", "warm": "--warm"}.get(name)
    return f"this tfcluster does not support {needs}" if needs and needs not in _known() else ""


@cache
def _known() -> str:
    """Return the spec's schema and the help of `up`, which show the arms that work here."""
    asked = [[TFCLUSTER, "schema"], [TFCLUSTER, "up", "--help"]]
    return "".join(subprocess.run(one, capture_output=True, text=True).stdout for one in asked)


@cache
def _version(venv: str, package: str) -> str:
    """Return a package's version from its metadata; starting the environment takes seconds."""
    found = (ROOT / venv).glob(f"lib/python3*/site-packages/{package}-*.dist-info")
    return next((path.name.split("-")[1].removesuffix(".dist") for path in found), "")
