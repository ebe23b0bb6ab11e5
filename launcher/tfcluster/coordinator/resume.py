"""``up --resume RUN[@STEP]``: `find` the gathered state of a run, and `seed` a new run with it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent.error_text import describe_error
from tfcluster.checkpoints.copying import PARTIAL
from tfcluster.checkpoints.recognition import CheckpointKind, Newest
from tfcluster.checkpoints.store import Damaged, Gathered, newest_of, newest_of_each, read_store
from tfcluster.errors import RunFolderError, SetupError, UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.events import Event, Resumed, Warned
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status


class NoCheckpointError(UsageError):
    """A run that has gathered no checkpoint, and no damaged one either."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The gathered state of an earlier run that a new run starts from."""

    source: RunPaths
    newest: Newest
    state: tuple[Gathered, ...]
    damaged: tuple[Damaged, ...] = ()
    """Newer checkpoints that it does not start from."""

    @property
    def checkpoint(self) -> str | None:
        """The name of the newest checkpoint if its step is not known, else None."""
        return self.newest.name if self.newest.step is None else None

    def events(self) -> list[Event]:
        run = self.source.run_id
        resumed = Resumed(run=run, step=self.newest.step, checkpoint=self.checkpoint)
        return [resumed, *(Warned(message=f"{run}: {damaged}") for damaged in self.damaged)]


def find(
    text: str, say: Callable[[str], None] = lambda sentence: None, *, takes_older: bool = True
) -> Resume:
    """Return the state that ``RUN[@STEP]`` names.

    What the run has left where its tasks saved is gathered first; `say` gets sentences about it.
    Raises UnknownRunError or UsageError (exit 2) if there is none, and SetupError if something
    could not be gathered, unless it `takes_older` state then.
    """
    from tfcluster.coordinator.late_gathering import gather_left  # slow: only this needs psutil

    run, at, number = text.rpartition("@")
    has_place = bool(at) and number.isdecimal()
    source = registry.resolve((run if has_place else text) or None)
    if not (gather_left(source, say) or takes_older):
        message = f"the newest files of {source.run_id} could not be gathered"
        again = f"`tfcluster up --resume {source.run_id[-4:]}` starts from what was gathered before"
        raise SetupError(message, fix=again)
    held, damaged = read_store(source.checkpoints)
    place = int(number) if has_place else None
    while True:
        if not held:
            message = f"resume: {source.run_id} has gathered no checkpoint"
            if not damaged:
                raise NoCheckpointError(message, fix=_fix_for_none(source))
            raise UsageError(message, fix="; ".join(map(str, damaged)))
        try:
            state = newest_of_each(held, place=place)
        except KeyError:
            raise UsageError(
                f"resume: {source.run_id} has gathered no checkpoint of step or save {number}",
                fix="; ".join([f"it has {_list_available(held)}", *map(str, damaged)]),
            ) from None
        new = [Damaged(g.folder, damage) for g in state if (damage := g.find_damage())]
        if not new:
            return Resume(source, newest_of(state), state, damaged)
        damaged += tuple(each for each in new if each.folder.exists())  # else just replaced
        folders = {each.folder for each in new}
        held = tuple(gathered for gathered in held if gathered.folder not in folders)


def seed(resume: Resume, store: Path) -> None:
    """Put the state into the checkpoint store of a new run, where attempt 1 finds it.

    Files are hard-linked where the file system allows it: a store never changes a file, and tasks
    get copies. Raises RunFolderError.
    """
    try:
        store.mkdir(exist_ok=True)
        for gathered in resume.state:
            partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=store))
            shutil.copytree(
                gathered.folder, partial, copy_function=_link_or_copy, dirs_exist_ok=True
            )
            partial.rename(store / gathered.folder.name)
    except OSError as error:
        raise RunFolderError(
            f"cannot copy the checkpoint of {resume.source.run_id}: {describe_error(error)}",
            fix="check the free disk space, and that the other run has ended",
        ) from error


def _link_or_copy(source: str, target: str) -> None:
    if os.path.basename(source).startswith((".", "checkpoint")):
        shutil.copy2(source, target)  # notes that a store rewrites
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


def _list_available(held: Sequence[Gathered]) -> str:
    results = [gathered for gathered in held if gathered.kind != CheckpointKind.BACKUP]
    listed = _list("step", {r.step for r in results}) + _list("save", {r.save for r in results})
    return " and ".join(listed) or "none whose step is known: leave out @STEP"


def _list(word: str, numbers: set[int | None]) -> list[str]:
    known = sorted(number for number in numbers if number is not None)
    named = ", ".join(map(str, known))
    return [f"the {word}s {named}" if len(known) > 1 else f"{word} {named}"] if known else []


def _fix_for_none(source: RunPaths) -> str:
    state = registry.load(source)
    if state.attempt and not source.checkpoints.exists():
        return "its tasks saved nothing in $TFCLUSTER_CHECKPOINT_DIR, or saved in `checkpoints.dir`"
    if state.status is Status.SUCCEEDED:
        return (
            "it succeeded, and `fit` ends by deleting what BackupAndRestore saved: save the model"
            " as well to continue from it"
        )
    return "`tfcluster checkpoints RUN` lists what a run has gathered"
