"""The store of gathered checkpoints in a run folder: complete, verified, and safe from the chief.

`Store` writes it, `read_store` reads it, `deliver` copies from it, `fill` puts back the state
that an attempt starts from, `load_hint` shows how to load a checkpoint. Its layout, which may be
moved as a whole::

    checkpoint                     text proto: tf.train.latest_checkpoint(root) works
    ckpt-12/                       one folder per gathered checkpoint, renamed into place
        checkpoint                 the same for this folder alone
        ckpt-12.index              named as at the source, without the source's folder
        ckpt-12.data-00000-of-00001
        .tfcluster.json            its origin, sizes, times, SHA-512
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from posixpath import basename
from typing import Any, TypeVar

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import reason_of
from tfcluster.checkpoints import copying
from tfcluster.checkpoints.copying import (
    NOT_AS_GATHERED,
    PARTIAL,
    DamagedError,
    Source,
    SourceChangedError,
    Stopped,
    copy_gathered,
    never,
    replace_verified,
    replacing,
    scan,
    source_of,
    sync_folder,
    write_atomically,
)
from tfcluster.checkpoints.damage import find_damage
from tfcluster.checkpoints.recognition import (
    Age,
    Checkpoint,
    CheckpointKind,
    Entry,
    Newest,
    oldest_first,
)
from tfcluster.typed_json import reader

K = TypeVar("K", "Checkpoint", "Gathered")

_NOTE = ".tfcluster.json"
_NOTE_OF_DAMAGED = ".tfcluster-damaged.json"
"""The note of a checkpoint that is set aside: nothing restores it."""
_KEPT_FOR_EVALUATOR = 5
"""The number of checkpoints that stay for a slow evaluator, however few the store keeps."""
_SAVE_COUNTER = re.compile(r"-(\d+)$")

_LOADS = {
    CheckpointKind.TF_CHECKPOINT: "tf.train.load_checkpoint({path})",
    CheckpointKind.ESTIMATOR: "tf.train.load_checkpoint({path})",
    CheckpointKind.SAVED_MODEL: "tf.saved_model.load({path})",
    CheckpointKind.KERAS: "keras.models.load_model({path})",
    CheckpointKind.WEIGHTS: "model.load_weights({path})",
    CheckpointKind.ORBAX: "orbax.checkpoint.PyTreeCheckpointer().restore({path})",
}
"""CheckpointKind → Python that loads a checkpoint of which no task reported how."""
_LOAD_BACKUP = "tf.train.Checkpoint(model=model).restore({path}).expect_partial()"
"""Python that loads what Keras 2's `BackupAndRestore` saves (worker_training_state.py)."""


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A checkpoint that a ``checkpoint`` file names."""

    path: str
    """Relative to the folder of that file."""
    saved: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Score:
    """The value of the metric by which an evaluator compares checkpoints."""

    metric: str
    value: float
    lower_is_better: bool

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4g}"


@dataclass(frozen=True, slots=True)
class Gathered:
    """A checkpoint in the store."""

    checkpoint: Checkpoint
    """The checkpoint at its source."""
    folder: Path
    step: int | None
    digests: tuple[str, ...]
    """The SHA-512 of each of `checkpoint.files`."""
    saved_ns: int
    """The time of the save in ns, later than that of the save it has replaced at the same path."""
    load: str = ""
    """Python that loads it, with `{path}` for the path, as the task reported; "" if it did not."""
    score: Score | None = None
    """The score that an evaluator has reported, if one has."""

    @property
    def path(self) -> Path:
        """The argument of a loading call: the prefix, the file, or the folder."""
        name = "" if self.kind is CheckpointKind.BACKUP else basename(self.checkpoint.path)
        return self.folder / name

    @property
    def kind(self) -> CheckpointKind:
        return self.checkpoint.kind

    @property
    def bytes(self) -> int:
        return self.checkpoint.bytes

    @property
    def save(self) -> int | None:
        """The save counter of a `tf.train.Checkpoint` whose step is unknown, else None."""
        if self.step is not None or self.kind is not CheckpointKind.TF_CHECKPOINT:
            return None
        counted = _SAVE_COUNTER.search(self.checkpoint.path)
        return int(counted[1]) if counted else None

    @property
    def place(self) -> int | None:
        """The step, else the save counter: the number after ``RUN@``."""
        return self.step if self.step is not None else self.save

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """The files' names and digests; equal for equal contents."""
        names = (entry.path for entry in self.checkpoint.files)
        return tuple(zip(names, self.digests, strict=True))

    @property
    def age(self) -> Age:
        return self.checkpoint.age(step=self.step, saved_ns=self.saved_ns)

    def file(self, entry: Entry) -> Path:
        """Return the path of a file of the checkpoint in the store."""
        return self.folder / entry.path.removeprefix(self.checkpoint.base).lstrip("/")

    def copy(self, entry: Entry, target: Path, *, stopped: Stopped = never) -> None:
        """Copy a file of the checkpoint to `target`; see `copying.copy_gathered` for errors."""
        digest = dict(zip(self.checkpoint.files, self.digests, strict=True)).get(entry)
        copy_gathered(self.file(entry), target, entry, digest, stopped=stopped)

    def find_damage(self, *, stopped: Stopped = never) -> str:
        """Return which file is not what was gathered, or "". Raises CancelledError."""
        for entry, digest in zip(self.checkpoint.files, self.digests, strict=True):
            file = self.file(entry)
            try:
                if copying.sha512(file, stopped=stopped) != digest:
                    return f"{file.name}: {NOT_AS_GATHERED}"
            except OSError as error:
                return f"{file.name}: {reason_of(error)}"
        return ""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A checkpoint in the store that nothing can be restored from."""

    folder: Path
    damage: str
    is_set_aside: bool = False

    def __str__(self) -> str:
        return f"the gathered checkpoint {self.folder.name} is damaged: {self.damage}"


class IncompleteError(SourceChangedError):
    """A file seemed complete but is not, by its own format."""


class Store:
    """The gathered checkpoints of one run, at most `keep` of each series.

    Only one process may write to it. The disk is consistent at every moment: an interrupted
    process leaves at most a hidden partial folder, which the next one removes.
    """

    def __init__(self, root: Path, *, keep: int = 3) -> None:
        self.root = root
        self.keep = keep
        self._held: list[Gathered] = []
        self.damaged: list[Damaged] = []
        """The checkpoints that this store has set aside."""
        if root.is_dir():
            self._recover()

    @property
    def held(self) -> tuple[Gathered, ...]:
        """All checkpoints in the store, oldest first."""
        return tuple(self._held)

    @property
    def newest(self) -> Gathered | None:
        """The newest result, or None; a backup is not a result."""
        return next((g for g in reversed(self._held) if g.kind is not CheckpointKind.BACKUP), None)

    def state(self) -> tuple[Gathered, ...]:
        """Return the checkpoints a restart starts from; see `newest_of_each`."""
        return newest_of_each(self._held)

    def ages_of(self, new: Mapping[Checkpoint, int | None]) -> dict[Checkpoint, Age]:
        """Return the ages of checkpoints that are not in the store; `new`: each with its step.

        A save is later than those that it replaced, whatever its time: clocks are set back.
        """
        replaced: dict[str, int] = {}
        for held in self._held:
            path = held.checkpoint.path
            replaced[path] = max(replaced.get(path, 0), held.saved_ns + 1)
        return {
            c: c.age(step=step, saved_ns=max(c.saved_ns, replaced.get(c.path, 0)))
            for c, step in new.items()
        }

    def set_aside_damaged(self, *, stopped: Stopped = never) -> list[Damaged]:
        """Set aside what a restart would start from but is not what was gathered; return it.

        Raises CancelledError.
        """
        all_damaged = [
            Damaged(gathered.folder, damage)
            for gathered in self.state()
            if (damage := gathered.find_damage(stopped=stopped))
        ]
        for damaged in all_damaged:
            self._held = [held for held in self._held if held.folder != damaged.folder]
            self._set_aside(damaged)
        if all_damaged:
            self._write_checkpoint_file()
        return all_damaged

    def _set_aside(self, damaged: Damaged) -> None:
        """Keep a damaged checkpoint, for the user, where nothing restores it."""
        self.damaged.append(damaged)
        with contextlib.suppress(OSError):
            (damaged.folder / _NOTE).rename(damaged.folder / _NOTE_OF_DAMAGED)

    def add(
        self,
        checkpoint: Checkpoint,
        source: Path | Source,
        *,
        step: int | None,
        load: str = "",
        stopped: Stopped = never,
    ) -> Gathered | None:
        """Copy a complete checkpoint from `source`; return None if the store has its contents.

        Raises SourceChangedError (IncompleteError), CancelledError, OSError; then nothing is left.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=self.root))
        try:
            gathered = _copy(checkpoint, source_of(source), partial, stopped=stopped)
            age = self.ages_of({checkpoint: step})[checkpoint]
            gathered = replace(gathered, step=step, load=load, saved_ns=age.saved_ns)
            if self._has_content_of(gathered):
                return None
            gathered = self._place(gathered)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self._held = _by_age([*self._held, gathered])
        self._prune()
        return gathered

    def correct(self, gathered: Gathered, *, step: int | None, load: str) -> Gathered:
        """Set what was reported of a gathered checkpoint; return the new value. Raises OSError."""
        return self._renew(gathered, replace(gathered, step=step, load=load))

    def rate(self, gathered: Gathered, score: Score) -> None:
        """Note an evaluator's score; the best checkpoint is kept. Raises OSError."""
        self._renew(gathered, replace(gathered, score=score))

    def forget(self, gathered: Gathered) -> None:
        """Remove a checkpoint; the ``checkpoint`` file drops it first and never names a gap."""
        self._held.remove(gathered)
        self._write_checkpoint_file()
        removed = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=self.root))
        gathered.folder.rename(removed / "gone")
        shutil.rmtree(removed, ignore_errors=True)

    def _has_content_of(self, new: Gathered) -> bool:
        """Return whether the store has these contents; if so, they get the save time of `new`."""
        same = next((held for held in self._held if held.contents == new.contents), None)
        if same is None:
            return False
        companions = same.checkpoint.companions  # those in the store
        checkpoint = replace(new.checkpoint, companions=companions)
        self._renew(same, replace(same, checkpoint=checkpoint, saved_ns=new.saved_ns))
        self._write_checkpoint_file()
        return True

    def _renew(self, old: Gathered, new: Gathered) -> Gathered:
        _write_note(new)
        self._held = _by_age([new if held is old else held for held in self._held])
        return new

    def _place(self, gathered: Gathered) -> Gathered:
        target = self._free_folder(gathered.checkpoint)
        _write_note(gathered)
        _name_prefixes(gathered.folder, _prefixes([gathered], below=gathered.folder))
        sync_folder(gathered.folder)
        gathered.folder.rename(target)
        sync_folder(self.root)
        return replace(gathered, folder=target)

    def _free_folder(self, checkpoint: Checkpoint) -> Path:
        """Return a free folder: ``ckpt-12``, with a number if the name was used before."""
        name = str(checkpoint.kind) if checkpoint.path == "." else checkpoint.path
        name = name.replace("/", "-").lstrip(".")
        same = re.compile(re.escape(name) + r"(?:\.(\d+))?")
        existing = [m for path in self.root.iterdir() if (m := same.fullmatch(path.name))]
        if not existing and name != "checkpoint":  # the name of TensorFlow's text file
            return self.root / name
        return self.root / f"{name}.{1 + max((int(m[1] or 1) for m in existing), default=1)}"

    def worth_keeping(self, items: Iterable[K], age: Callable[[K], Age]) -> list[K]:
        """Return those of `items`, oldest first, that a store keeps of each series.

        These are the newest `keep`, or one backup, and the one that was written last: a script may
        train again, from step 0, and then its steps are lower.
        """
        series: dict[str, list[K]] = defaultdict(list)
        for item in items:
            series[age(item).series].append(item)
        kept = list[K]()
        for members in series.values():
            count = 1 if members[0].kind is CheckpointKind.BACKUP else self.keep
            last = max(members, key=lambda member: age(member).saved_ns)
            if last not in members[-count:]:
                kept.append(last)
            kept += members[-count:]
        return kept

    def _prune(self) -> None:
        kept = [*self.worth_keeping(self._held, lambda held: held.age), best_of(self._held)]
        for old in [held for held in self._held if held not in kept]:
            self.forget(old)
        self._write_checkpoint_file()

    def _write_checkpoint_file(self) -> None:
        results = [g for g in self._held if g.kind is not CheckpointKind.BACKUP]
        _name_prefixes(self.root, _prefixes(results, below=self.root))

    def _recover(self) -> None:
        for leftover in self.root.glob(f"{PARTIAL}*"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        held, damaged = read_store(self.root)
        self._held = list(held)
        for broken in damaged:
            if not broken.is_set_aside:
                self._set_aside(broken)
        self._write_checkpoint_file()


def best_of(held: Sequence[Gathered]) -> Gathered | None:
    """Return the checkpoint with the best score, of equal ones the oldest; None without a score.

    Scores of another metric than that of the newest do not count.
    """
    rated = [(gathered, gathered.score) for gathered in held if gathered.score is not None]
    if not rated:
        return None
    last = rated[-1][1]
    sign = 1.0 if last.lower_is_better else -1.0
    same = [(gathered, score) for gathered, score in rated if score.metric == last.metric]
    return min(same, key=lambda pair: sign * pair[1].value)[0]


def newest_of_each(held: Sequence[Gathered], *, place: int | None = None) -> tuple[Gathered, ...]:
    """Return the newest checkpoint of each series, up to `place` if given (`Gathered.place`).

    They are in the order of `held`, oldest first. Raises KeyError if no checkpoint has that place.
    """
    chosen = {
        g.checkpoint.series: g for g in held if place is None or g.place is None or g.place <= place
    }
    if place is not None and all(g.place != place for g in chosen.values()):
        raise KeyError(place)
    return tuple(gathered for gathered in held if gathered in chosen.values())


def kept_for_evaluator(placed: Sequence[Gathered], held: Sequence[Gathered]) -> list[Gathered]:
    """Return those of `placed`, oldest first, that stay in the folder of an evaluator.

    These are what the store holds, and the newest for an evaluator that still reads one.
    """
    kept = {g.checkpoint for g in (*held, *placed[-_KEPT_FOR_EVALUATOR:])}
    return [gathered for gathered in placed if gathered.checkpoint in kept]


def read_store(root: Path) -> tuple[tuple[Gathered, ...], tuple[Damaged, ...]]:
    """Return the checkpoints below `root`, oldest first, and those that are damaged.

    The contents of files are not read, and nothing is changed.
    """
    held, damaged = list[Gathered](), list[Damaged]()
    for note in sorted(root.glob(f"*/{_NOTE}")):
        if note.parent.name.startswith(PARTIAL):
            continue
        try:
            held.append(_read_note(note))
        except DamagedError as error:
            if note.exists():  # else its run has just replaced it by a newer one
                damaged.append(Damaged(note.parent, str(error)))
    for note in sorted(root.glob(f"*/{_NOTE_OF_DAMAGED}")):
        damaged.append(Damaged(note.parent, "it is set aside", is_set_aside=True))
    return tuple(_by_age(held)), tuple(damaged)


def deliver(
    gathered: Gathered | None, outputs: Path | None, to: Path, *, stopped: Stopped = never
) -> tuple[Path, ...]:
    """Copy one checkpoint and the gathered outputs into `to`; return the files written.

    The files keep their names from the run, a ``checkpoint`` file names the prefix, and all other
    files in the folder stay. Raises CancelledError, SourceChangedError, OSError.
    """
    written: list[Path] = []
    if gathered:
        for entry in gathered.checkpoint.all_files:
            target = to / gathered.file(entry).relative_to(gathered.folder)
            with replacing(target) as partial:
                gathered.copy(entry, partial, stopped=stopped)
            written.append(target)
        if prefixes := _prefixes([gathered], below=gathered.folder):
            _name_prefixes(to, prefixes)
            written.append(to / "checkpoint")
    if outputs:
        for entry in scan(outputs):
            if not entry.path.endswith("/"):
                replace_verified(outputs / entry.path, to / entry.path, entry, stopped=stopped)
                written.append(to / entry.path)
    return tuple(written)


def load_hint(gathered: Gathered) -> str:
    """Return one line of Python that loads the checkpoint, with its absolute path.

    It loads into the variable `model` what has no model in it. A backup is not to be given to
    `BackupAndRestore`, which deletes it.
    """
    path, load = gathered.path, gathered.load
    if gathered.kind is CheckpointKind.BACKUP:
        path = gathered.file(gathered.checkpoint.files[-1])
        is_keras_2 = path.suffix == ".index"
        path = path.with_suffix("") if is_keras_2 else path.with_name("latest.weights.h5")
        load = _LOAD_BACKUP if is_keras_2 else _LOADS[CheckpointKind.WEIGHTS]
    elif gathered.kind is CheckpointKind.ORBAX:  # one of its folders has the arrays
        files = gathered.checkpoint.files
        path = next((gathered.file(f).parent for f in files if f.path.endswith("/_METADATA")), path)
    return (load or _LOADS[gathered.kind]).replace("{path}", repr(str(path.absolute())))


def _copy(checkpoint: Checkpoint, source: Source, folder: Path, *, stopped: Stopped) -> Gathered:
    """Copy a checkpoint in the order of its files: data shards first, then the index."""
    new = Gathered(checkpoint, folder, None, (), checkpoint.saved_ns)
    digests = []
    for entry in checkpoint.files:
        target = new.file(entry)
        digests.append(source.copy(entry, target, stopped=stopped))
        if damage := find_damage(target, stopped=stopped):
            raise IncompleteError(f"{entry.path}: {damage}")
    # The last shard may have been rotated away, or rewritten, while the others were copied.
    source.check(checkpoint.files, stopped=stopped)
    companions = tuple(
        entry for entry in checkpoint.companions if _copy_companion(entry, new, source, stopped)
    )
    copied = replace(checkpoint, companions=companions)
    return replace(new, checkpoint=copied, digests=tuple(digests))


def _copy_companion(companion: Entry, new: Gathered, source: Source, stopped: Stopped) -> bool:
    """Return whether it could be copied."""
    try:
        source.copy(companion, new.file(companion), stopped=stopped)
    except SourceChangedError:
        new.file(companion).unlink(missing_ok=True)
        return False
    return True


def _by_age(gathered: Sequence[Gathered]) -> list[Gathered]:
    return oldest_first(sorted(gathered, key=lambda g: g.folder), lambda g: g.age)


def _prefixes(gathered: Sequence[Gathered], *, below: Path) -> list[_Prefix]:
    return [
        _Prefix(g.path.relative_to(below).as_posix(), g.checkpoint.saved_ns / 1e9)
        for g in gathered
        if g.kind in (CheckpointKind.TF_CHECKPOINT, CheckpointKind.ESTIMATOR)
    ]


def _write_note(gathered: Gathered) -> None:
    note = {
        "version": 1,
        "kind": gathered.kind,
        "path": gathered.checkpoint.path,
        "step": gathered.step,
        "load": gathered.load,
        "saved_ns": gathered.saved_ns,
        "score": asdict(gathered.score) if gathered.score is not None else None,
        "files": [
            asdict(entry) | {"sha512": digest}
            for entry, digest in zip(gathered.checkpoint.files, gathered.digests, strict=True)
        ],
        "companions": [asdict(entry) for entry in gathered.checkpoint.companions],
    }
    write_atomically(gathered.folder / _NOTE, json.dumps(note, indent=1))


def _read_note(note: Path) -> Gathered:
    """Return the checkpoint of a note.

    Raises DamagedError if the note is invalid, or files are missing or have another size.
    """
    try:
        data = foreign_json.read_json_object(note)
        path, step, load = data["path"], data["step"], data.get("load", "")
        if not (isinstance(path, str) and isinstance(step, int | None) and isinstance(load, str)):
            raise ValueError("a value has the wrong type")
        files, companions = _entries(data["files"]), _entries(data["companions"])
        checkpoint = Checkpoint(CheckpointKind(data["kind"]), path, files, companions)
        if any("sha512" not in file for file in data["files"]):
            raise ValueError(
                "it has no SHA-512, as of a version before 0.1: load it from its folder"
            )
        digests = tuple(str(f["sha512"]) for f in data["files"])
        saved_ns = int(data.get("saved_ns", checkpoint.saved_ns))
        score = reader(Score | None)(data.get("score"))
        gathered = Gathered(checkpoint, note.parent, step, digests, saved_ns, load, score)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{note.name}: {reason_of(error)}") from error
    if not files:
        raise DamagedError(f"{note.name}: it names no file")
    for entry in checkpoint.all_files:
        try:
            size = gathered.file(entry).stat().st_size
        except (OSError, ValueError) as error:
            raise DamagedError(f"{gathered.file(entry).name}: {reason_of(error)}") from error
        if size != entry.size:
            raise DamagedError(
                f"{gathered.file(entry).name}: it has {size:,} bytes instead of {entry.size:,}"
            )
    return gathered


def _entries(rows: Sequence[Mapping[str, Any]]) -> tuple[Entry, ...]:
    """Parse the files of a note. Raises ValueError, KeyError, TypeError for invalid ones."""
    entries = tuple(Entry(row["path"], row["size"], row["mtime_ns"]) for row in rows)
    for entry in entries:
        if [type(entry.path), type(entry.size), type(entry.mtime_ns)] != [str, int, int]:
            raise ValueError(f"{entry} is not a file")
    return entries


def newest_of(state: Iterable[Gathered]) -> Newest:
    """Return the newest checkpoint with a known step, else the newest; a backup only if alone.

    `state`: oldest first.
    """
    best = max(
        reversed([*state]),
        key=lambda g: (g.step is not None, g.kind is not CheckpointKind.BACKUP),
        default=None,
    )
    return Newest(best.step, best.checkpoint.name) if best else Newest()


def fill(folder: Path, state: Sequence[Gathered]) -> None:
    """Copy `state` into `folder` under the chief's file names, with its ``checkpoint`` files."""
    for gathered in state:
        for entry in gathered.checkpoint.all_files:
            gathered.copy(entry, folder / entry.path)
    name_checkpoints(folder, state)


def _name_prefixes(folder: Path, prefixes: Sequence[_Prefix]) -> None:
    """Write the ``checkpoint`` file of `folder`, or remove it without `prefixes` (oldest first).

    It is UTF-8, so that it cannot name all files.
    """
    path = folder / "checkpoint"
    prefixes = [prefix for prefix in prefixes if _is_utf8(prefix.path)]
    if not prefixes:
        path.unlink(missing_ok=True)
        return
    quoted = [json.dumps(prefix.path, ensure_ascii=False) for prefix in prefixes]
    lines = [
        f"model_checkpoint_path: {quoted[-1]}\n",
        *(f"all_model_checkpoint_paths: {path}\n" for path in quoted),
        *(f"all_model_checkpoint_timestamps: {prefix.saved:.6f}\n" for prefix in prefixes),
    ]
    write_atomically(path, "".join(lines))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_checkpoints(folder: Path, gathered: Iterable[Gathered]) -> None:
    """Write a ``checkpoint`` file into each folder below `folder` that holds a prefix."""
    by_folder: dict[str, list[_Prefix]] = defaultdict(list)
    for held in oldest_first(gathered, lambda held: held.age):
        for entry in held.checkpoint.files:
            prefix = entry.path.removesuffix(".index")
            if held.kind is not CheckpointKind.SAVED_MODEL and prefix != entry.path:
                inside, _, name = prefix.rpartition("/")
                by_folder[inside].append(_Prefix(name, held.saved_ns / 1e9))
    for inside, prefixes in by_folder.items():
        _name_prefixes(folder / inside, prefixes)
