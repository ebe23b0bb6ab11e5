"""``up --resume RUN[@STEP]``: a new run begins with what an earlier one had gathered."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent.error_text import describe_error
from tfcluster.checkpoints.completeness import Kind, Newest
from tfcluster.checkpoints.copying import PARTIAL
from tfcluster.checkpoints.restore import newest_of
from tfcluster.checkpoints.store import Gathered, newest_of_each, open_for_reading
from tfcluster.errors import RunFolderError, UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths


@dataclass(frozen=True, slots=True)
class Resume:
    """Which state of which run."""

    source: RunPaths
    newest: Newest
    state: tuple[Gathered, ...]

    @property
    def checkpoint(self) -> str | None:
        """The name of the newest one, where its step is not known."""
        return self.newest.name if self.newest.step is None else None


def find(text: str) -> Resume:
    """What ``RUN[@STEP]`` means; UnknownRunError or UsageError (exit 2) where that is nothing."""
    run, at, number = text.rpartition("@")
    has_place = bool(at) and number.isdecimal()
    source = registry.resolve((run if has_place else text) or None)
    held = open_for_reading(source.checkpoints)
    if not held:
        raise UsageError(
            f"--resume: {source.run_id} has gathered no checkpoint", fix=_cure_for_none(source)
        )
    try:
        state = newest_of_each(held, place=int(number) if has_place else None)
    except KeyError:
        raise UsageError(
            f"--resume: {source.run_id} has gathered no checkpoint of step or save {number}",
            fix=f"it has {_what_there_is(held)}",
        ) from None
    return Resume(source, newest_of(state), state)


def seed(resume: Resume, store: Path) -> None:
    """Put the state into a new run's store, where attempt 1 finds it.

    Files are hard-linked where the file system allows it: a store never writes into one, and
    tasks get copies. Raises RunFolderError.
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
            f"cannot take over the checkpoint of {resume.source.run_id}: {describe_error(error)}",
            fix="is the disk full, or is that run still changing it?",
        ) from error


def _link_or_copy(source: str, target: str) -> None:
    if os.path.basename(source).startswith((".", "checkpoint")):
        shutil.copy2(source, target)  # notes, which a store renews
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


def _what_there_is(held: Sequence[Gathered]) -> str:
    results = [one for one in held if one.kind != Kind.BACKUP]
    listed = _list("step", {one.step for one in results}) + _list("save", {o.save for o in results})
    return " and ".join(listed) or "none whose step is known: leave out @STEP"


def _list(word: str, numbers: set[int | None]) -> list[str]:
    known = sorted(number for number in numbers if number is not None)
    named = ", ".join(map(str, known))
    return [f"the {word}s {named}" if len(known) > 1 else f"{word} {named}"] if known else []


def _cure_for_none(source: RunPaths) -> str:
    if registry.load(source).attempt and not source.checkpoints.exists():
        return "its tasks saved nothing to $TFCLUSTER_CHECKPOINT_DIR, or `checkpoints.dir` has it"
    return "`tfcluster checkpoints RUN` lists what a run has gathered"
