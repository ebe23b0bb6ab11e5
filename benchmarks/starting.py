"""The time a launcher needs before its tasks begin, and after the last of them has ended."""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Claim, Metric, Quantity, Taken
from benchmarks.launchers import LAUNCHERS, Launcher, stubs
from benchmarks.sandbox import sandbox
from benchmarks.stamps import all_stamps, stamps

_PEERS = ("torchrun", "honcho", "accelerate")


def _start(tasks: int, launcher: Launcher) -> Taken:
    """Measure from exec to the last stub's first instruction."""
    with sandbox() as box:
        command = launcher.command(box.folder, stubs(tasks, "meet"))
        began, _ = box.run(command)
        return {"start": max(one.at for one in all_stamps(box.folder, tasks)) - began}


def _exit(tasks: int, launcher: Launcher) -> Taken:
    """Measure from the last stub's last instruction to the command's end.

    Honcho ends all when one exits, so some of its stubs do not reach their last instruction.
    """
    with sandbox() as box:
        command = launcher.command(box.folder, stubs(tasks, "meet"))
        _, ended = box.run(command)
        all_stamps(box.folder, tasks)
        return {"exit": ended - max(one.at for one in stamps(box.folder, "left"))}


def start(*, quick: bool) -> Metric:
    """Return the start metric for 8 stub workers."""
    tasks = 4 if quick else 8
    arms = {name: LAUNCHERS[name] for name in ("tfcluster", "shell", *_PEERS)}
    return Metric(
        title=f"Start: {tasks} stub workers, from Enter to the last one's first instruction",
        quantities={"start": Quantity("s")},
        arms={name: one.arm(partial(_start, tasks)) for name, one in arms.items()},
        claims=[
            Claim("tfcluster : torchrun", "start", "tfcluster", "torchrun", 0.35, stretch=0.25),
            *(Claim(f"tfcluster : {x}", "start", "tfcluster", x) for x in ("honcho", "accelerate")),
            Claim("tfcluster : shell", "start", "tfcluster", "shell"),
        ],
    )


def exit_(*, quick: bool) -> Metric:
    """Return the exit metric for 8 stub workers."""
    tasks = 4 if quick else 8
    arms = {name: LAUNCHERS[name] for name in ("tfcluster", "shell", *_PEERS)}
    return Metric(
        title=f"Exit: {tasks} stub workers, from the last one's last instruction to the prompt",
        quantities={"exit": Quantity("s")},
        arms={name: one.arm(partial(_exit, tasks)) for name, one in arms.items()},
        claims=[Claim(f"tfcluster : {x}", "exit", "tfcluster", x) for x in ("shell", *_PEERS)],
    )
