"""A stub of a TensorFlow worker: it joins, trains in step, saves, resumes and dies like a real one.

Its behaviour when it or a peer fails is replayed from `recordings.json`, with the recorded delays
times `--scale`. Its last line is right only if every step was done once and in order, by the same
rule in every task. It needs the standard library and tfcluster_workers, Python 3.9 and later.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import inject  # type: ignore[import-not-found]
from stub_gang import Gang, PeerIsGone  # type: ignore[import-not-found]

from tfcluster_workers import context, reporting

INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)
KEPT = 3


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--steps", type=int, default=30)
    add("--save-every", type=int, default=5)
    add("--step-s", type=float, default=0.005)
    add("--fault-step", type=int, default=12, help="counted from where the attempt starts")
    add("--like", default="newest", help="whose recordings are replayed")
    add("--scale", type=float, default=0.05, help="of the recorded delays")
    return parser.parse_args()


# -- dying as recorded ---------------------------------------------------------------------------


class Recorded:
    """The recorded behaviour of TensorFlow in each situation."""

    def __init__(self, like: str, scale: float) -> None:
        text = Path(__file__).with_name("recordings.json").read_text()
        self._situations: dict[str, Any] = json.loads(text)[like]["situations"]
        self._scale = scale

    def silence_s(self, of: str) -> float:
        """Return the time after which a frozen peer is noticed."""
        return (
            float(self._situations[f"sigstop {of} training"]["survivor"]["delay_s"]) * self._scale
        )

    def die(self, situation: str, role: str, *, waited: bool = False) -> None:
        """End as the task did that was recorded in `situation`."""
        recorded = self._situations[situation][role]
        if not waited:
            time.sleep(recorded["delay_s"] * self._scale)
        print(*recorded["last_lines"], sep="\n", file=sys.stderr, flush=True)
        if recorded["signal"] is not None:
            os.kill(os.getpid(), recorded["signal"])
        if recorded["exception"] is None:
            sys.exit(recorded["exit_code"])
        module, _, name = recorded["exception"].rpartition(".")
        kind = type(name, (Exception,), {"__module__": module or "builtins"})
        raise kind(recorded["message"]) from None

    def swallow_sigterm(self) -> None:
        """Handle SIGTERM as MultiWorkerMirroredStrategy does before it waits for its peers."""
        me = inject.me()
        lines = self._situations[f"sigterm {me if me[-1] in '01' else 'worker:1'} training"]
        said = [line for line in lines["culprit"]["last_lines"] if "SIGTERM caught" in line]

        def write_lines(number: int, frame: Any) -> None:
            os.write(2, "".join(f"{line}\n" for line in said).encode())

        signal.signal(signal.SIGTERM, write_lines)


# -- training ------------------------------------------------------------------------------------


class State:
    """The trained state: a digest over the steps done, in their order."""

    def __init__(self) -> None:
        self.step, self.digest = 0, ""
        self._here = context.current()
        self._saves = 0

    def train(self) -> None:
        self.step += 1
        self.digest = hashlib.sha256(f"{self.digest} {self.step}".encode()).hexdigest()

    def accuracy(self) -> float:
        return int(self.digest[:8], 16) / 0xFFFFFFFF

    def restore(self) -> None:
        """Load the newest checkpoint that the file `checkpoint` names, if there is one."""
        pointer = self._here.checkpoint_dir / "checkpoint"
        if pointer.exists():
            name = pointer.read_text().partition('"')[2].partition('"')[0]
            data = self._here.checkpoint_dir / f"{os.path.basename(name)}.data-00000-of-00001"
            self.step, self.digest = json.loads(data.read_text())

    def save(self) -> None:
        """Save in TensorFlow's order: parts in a temporary folder, data, index, pointer."""
        folder, name = self._here.save_dir, f"ckpt-{self.step}"
        self._saves += 1
        temporary = folder / f"{name}_temp"
        temporary.mkdir(parents=True, exist_ok=True)
        part = temporary / "part-00000-of-00001.data-00000-of-00001"
        part.write_text(json.dumps([self.step, self.digest]))
        (temporary / "part-00000-of-00001.index").write_bytes(b"weights" + INDEX_END)
        if self._saves == 2:
            inject.at("saving")
        part.rename(folder / f"{name}.data-00000-of-00001")
        (temporary / "part-00000-of-00001.index").rename(folder / f"{name}.index")
        temporary.rmdir()
        self._point_to(folder, name)
        if self._here.is_chief:
            reporting.saved(str(folder / name), step=self.step)
        else:
            shutil.rmtree(folder)
        print(f"saved step {self.step}", flush=True)

    @staticmethod
    def _point_to(folder: Path, name: str) -> None:
        known = sorted(folder.glob("ckpt-*.index"), key=lambda path: int(path.stem[5:]))
        lines = [f'model_checkpoint_path: "{name}"']
        lines += [f'all_model_checkpoint_paths: "{path.stem}"' for path in known[-KEPT:]]
        (folder / "checkpoint.tmp").write_text("\n".join(lines) + "\n")
        (folder / "checkpoint.tmp").rename(folder / "checkpoint")
        for path in known[:-KEPT]:
            path.unlink()
            path.with_name(f"{path.stem}.data-00000-of-00001").unlink()


def train(options: argparse.Namespace, gang: Gang) -> None:
    state = State()
    state.restore()
    print(f"starting at step {state.step}", flush=True)
    fault_step = state.step + options.fault_step
    while state.step < options.steps:
        gang.barrier(f"step {state.step}")
        state.train()
        reporting.progress(state.step, metrics={"loss": 1 / state.step})
        if state.step == fault_step:
            inject.at("training")
        time.sleep(options.step_s)
        if state.step % options.save_every == 0:
            gang.barrier(f"save {state.step}")
            state.save()
    gang.barrier("end")
    reporting.finished()
    print(f"trained: loss {1 / state.step:.5f} accuracy {state.accuracy():.4f}", flush=True)


def main() -> None:
    options = parse()
    recorded = Recorded(options.like, options.scale)
    inject.at("before-join")
    reporting.waiting_for_peers()
    try:
        gang = Gang(inject.me(), silence_s=recorded.silence_s)
    except OSError:
        return recorded.die("port-thief", "victim", waited=True)
    recorded.swallow_sigterm()
    try:
        gang.join()
        reporting.ready()
        train(options, gang)
    except PeerIsGone as peer:
        gang.report_lost(peer.who, peer.how)
        culprit = "worker:0" if peer.who in {"chief:0", "worker:0"} else "worker:1"
        recorded.die(f"{peer.how} {culprit} training", "survivor", waited=peer.how == "sigstop")
    except BaseException as error:
        gang.report_lost(inject.me(), "exit-3" if isinstance(error, SystemExit) else "exception")
        raise


if __name__ == "__main__":
    main()
