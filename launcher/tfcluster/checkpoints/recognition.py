"""The complete checkpoints of a directory (`find`), recognised in listings alone, without a disk.

A checkpoint is complete if all its files exist, none is still being written (TensorFlow writes
``<prefix>_temp*`` and ``*.tempstate*`` first), and two listings show the same sizes and times.
Sources of the rules: TensorFlow's ``tensor_bundle.cc`` (``.index`` is written after the data
shards), tf_keras' ``worker_training_state.py`` (``chief/``), Keras 3's
``backup_and_restore.py`` and Orbax's ``atomicity.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from posixpath import basename, dirname
from typing import TypeVar

from tfcluster.agent.message_fields import UNREADABLE

T = TypeVar("T")


class CheckpointKind(StrEnum):
    """The kind of a checkpoint, which decides how it is loaded."""

    TF_CHECKPOINT = "tf_checkpoint"
    """``<prefix>.index`` and its data shards: tf.train.Checkpoint, Keras 2 ``save_weights``."""
    ESTIMATOR = "estimator"
    """Such files with ``.meta`` (and ``graph.pbtxt``): an Estimator's or Saver's model_dir."""
    SAVED_MODEL = "saved_model"
    KERAS = "keras"
    """A whole model in one ``.keras`` file."""
    WEIGHTS = "weights"
    """One HDF5 file: ``.weights.h5``, or a whole model in ``.h5``."""
    ORBAX = "orbax"
    """A folder of JAX's Orbax: a step of its CheckpointManager, or of Keras's OrbaxCheckpoint."""
    TORCH = "torch"
    """One ``.pt`` or ``.pth`` file of ``torch.save``."""
    BACKUP = "backup"
    """The state of ``BackupAndRestore``: only put back, never a result."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a listing, or one folder (its path then ends in ``/``)."""

    path: str
    """Relative to the listed directory, with ``/``."""
    size: int
    """Bytes; 0 or `UNREADABLE` for a folder."""
    mtime_ns: int

    @property
    def is_unreadable(self) -> bool:
        """True for a folder that cannot be listed."""
        return self.size == UNREADABLE


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint at its source."""

    kind: CheckpointKind
    path: str
    """The relative path of the prefix, the file, or the folder (``.``: the listed directory)."""
    files: tuple[Entry, ...]
    companions: tuple[Entry, ...] = field(default=(), compare=False)
    """Files copied with it that may be rewritten at any time, so not compared: ``graph.pbtxt``."""

    @property
    def step(self) -> int | None:
        """The step, if its name holds it: TensorFlow 1's `Saver` writes the global step there.

        `tf.train.Checkpoint` numbers its saves, Keras's callbacks count epochs.
        """
        return self.number if self.kind is CheckpointKind.ESTIMATOR else None

    @property
    def number(self) -> int | None:
        """The number in its name: a step, an epoch or a save counter; None without one."""
        named = self.files[-1].path if self.kind is CheckpointKind.BACKUP else self.path
        name = basename(named.removesuffix(".index"))
        return number_in_name(name, is_folder=self.kind is CheckpointKind.SAVED_MODEL)

    @property
    def name(self) -> str:
        """The name for users: ``ckpt-12``."""
        return str(self.kind) if self.path == "." else basename(self.path)

    @property
    def base(self) -> str:
        """The folder its files' names are relative to once gathered; "" for the listed one."""
        folder = self.path if self.kind is CheckpointKind.BACKUP else dirname(self.path)
        return "" if folder == "." else folder

    @property
    def series(self) -> str:
        """A key that successive checkpoints share: ``ckpt-#`` for ckpt-1, ckpt-2 …"""
        return f"{self.kind} {dirname(self.path)}/{_NUMBER.sub('#', basename(self.path))}"

    @property
    def saved_ns(self) -> int:
        """The newest mtime of its files, in ns."""
        return max(entry.mtime_ns for entry in self.files)

    def age(self, *, step: int | None, saved_ns: int) -> Age:
        """Return what decides which checkpoints are older; see `oldest_first`."""
        is_numbered = self.kind is not CheckpointKind.BACKUP and "#" in basename(self.series)
        return Age(self.series, is_numbered, step, self.number, saved_ns)

    @property
    def all_files(self) -> tuple[Entry, ...]:
        return self.files + self.companions

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files)


@dataclass(frozen=True, slots=True)
class Age:
    """The facts that decide which of several checkpoints is older."""

    series: str
    is_numbered: bool
    """True if the names of the series have numbers; else each save replaces the one before."""
    step: int | None
    number: int | None
    saved_ns: int


@dataclass(frozen=True, slots=True)
class Newest:
    """The checkpoint that an attempt starts from, as shown to users."""

    step: int | None = None
    """The step; None if unknown."""
    name: str | None = None
    """The name (``ckpt-12``); None without a checkpoint."""


_TEMPORARY = re.compile(
    r"(^|/)(workertemp_[^/]*|temp-\d+|[^/]*_temp(_[0-9a-f]+)?|[^/]*\.tmp|[^/]*\.tempstate\d*"
    r"|[^/]*\.orbax-checkpoint-tmp[^/]*)(/|$)"
)
_BEING_WRITTEN = re.compile(
    r"(?P<prefix>.+?)(_temp(_[0-9a-f]+)?/.*|\.(index|data-\d{5}-of-\d{5})\.tempstate\d*)$"
)
_SHARD = re.compile(r"(?P<prefix>.+)\.data-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_NUMBER = re.compile(r"\d+\.\d+|(?:(?<=[-_.=])|^|(?<=epoch)|(?<=step))\d+(?=$|[-_.])")
_FIRST_UNIX_TIME = 10**9
"""Numbers from here on are no steps: Estimator names exported SavedModels by Unix time."""

_PREFIXED = (CheckpointKind.TF_CHECKPOINT, CheckpointKind.ESTIMATOR)

_ORBAX_MARKER = "_CHECKPOINT_METADATA"
"""The file that each folder of Orbax has; its last act is to give the folder its name
(orbax/checkpoint/_src/path/atomicity.py)."""

_PART_OF_SAVED_MODEL = re.compile(
    r"saved_model\.pb|fingerprint\.pb|keras_metadata\.pb|(variables|assets|assets\.extra)/.*"
)

Shards = Mapping[str, Mapping[int, list[Entry]]]
"""Prefix → M → the shards of that prefix named ``…-of-M``."""


def find(now: Iterable[Entry], before: Iterable[Entry] | None) -> tuple[Checkpoint, ...]:
    """Return the complete checkpoints of a directory, oldest first.

    `now` is its listing; `before` an earlier one, or None if the writer has exited, so that one
    listing is enough. One is always enough for a backup: it is renewed every few steps, so two
    listings would always differ, and the file written last (``.index``, the metadata) marks it
    as complete.
    """
    listing = {entry.path: entry for entry in now}
    busy = {m["prefix"] for path in listing if (m := _BEING_WRITTEN.match(path))}
    files = {p: e for p, e in listing.items() if p[-1:] != "/" and not _TEMPORARY.search(p)}
    complete = [c for c in _candidates(files) if not (c.kind in _PREFIXED and c.path in busy)]
    if before is not None:
        earlier = set(before)
        complete = [
            c for c in complete if c.kind is CheckpointKind.BACKUP or earlier.issuperset(c.files)
        ]
    complete.sort(key=lambda checkpoint: checkpoint.path)
    return tuple(oldest_first(complete, lambda c: c.age(step=c.step, saved_ns=c.saved_ns)))


def oldest_first(items: Iterable[T], age: Callable[[T], Age]) -> list[T]:
    """Return `items` from the oldest to the newest.

    Of a series with numbers in its names, the newest has the highest step, or the highest number
    if not all steps are known: a clock may be set back while a job trains. The time decides
    between series, and never puts a checkpoint before an earlier one of its series.
    """
    aged = [(age(item), item) for item in items]
    series: dict[str, list[tuple[Age, T]]] = defaultdict(list)
    for pair in aged:
        series[pair[0].series].append(pair)
    timed = list[tuple[int, T]]()
    for members in series.values():
        has_steps = all(member_age.step is not None for member_age, _ in members)
        members.sort(key=lambda pair: _place_in_series(pair[0], has_steps=has_steps))
        saved_ns = 0
        for member_age, item in members:
            saved_ns = max(saved_ns, member_age.saved_ns)
            timed.append((saved_ns, item))
    timed.sort(key=lambda pair: pair[0])  # stable, so that each series stays in order
    return [item for _, item in timed]


def _place_in_series(age: Age, *, has_steps: bool) -> tuple[int, int]:
    number = (age.step if has_steps else age.number) or 0
    return (number, age.saved_ns) if age.is_numbered else (age.saved_ns, number)


def number_in_name(name: str, *, is_folder: bool = False) -> int | None:
    """Return the number in a checkpoint's name, or None.

    12 of ``ckpt-12``, 300 of ``model.ckpt-300``, 3 of ``weights.03-0.41.weights.h5``.
    """
    numbers = [text for text in _NUMBER.findall(name) if "." not in text]
    number = int(numbers[-1]) if numbers else None
    return None if is_folder and number is not None and number >= _FIRST_UNIX_TIME else number


def _candidates(files: Mapping[str, Entry]) -> Iterator[Checkpoint]:
    shards = _shards_by_prefix(files.values())
    yield from _saved_models(files, shards)
    yield from _prefixes(files, shards)
    yield from _orbax_folders(files)
    yield from _single_files(files)


def _shards_by_prefix(files: Iterable[Entry]) -> Shards:
    grouped: dict[str, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in files:
        if match := _SHARD.match(entry.path):
            grouped[match["prefix"]][int(match["count"])].append(entry)
    return grouped


def _whole_prefix(prefix: str, files: Mapping[str, Entry], shards: Shards) -> tuple[Entry, ...]:
    """Return all data shards of one M and then the index; () if one of them is missing."""
    index = files.get(f"{prefix}.index")
    whole = [entries for count, entries in shards.get(prefix, {}).items() if len(entries) == count]
    if index is None or index.size == 0 or not whole:
        return ()
    newest = max(whole, key=lambda entries: max(entry.mtime_ns for entry in entries))
    return (*sorted(newest, key=lambda entry: entry.path), index)


def _saved_models(files: Mapping[str, Entry], shards: Shards) -> Iterator[Checkpoint]:
    for marker in files:
        if basename(marker) != "saved_model.pb" or files[marker].size == 0:
            continue
        inside = marker.removesuffix("saved_model.pb")
        members = tuple(
            files[path]
            for path in sorted(files)
            if path.startswith(inside) and _PART_OF_SAVED_MODEL.fullmatch(path[len(inside) :])
        )
        has_variables = any(m.path.startswith(f"{inside}variables/") for m in members)
        if not has_variables or _whole_prefix(f"{inside}variables/variables", files, shards):
            yield Checkpoint(CheckpointKind.SAVED_MODEL, dirname(marker) or ".", members)


def _prefixes(files: Mapping[str, Entry], shards: Shards) -> Iterator[Checkpoint]:
    for prefix in shards:
        folder, name = dirname(prefix), basename(prefix)
        if (basename(folder), name) == ("variables", "variables"):  # part of a SavedModel
            continue
        members = _whole_prefix(prefix, files, shards)
        meta, graph = files.get(f"{prefix}.meta"), files.get(_beside(prefix, "graph.pbtxt"))
        if not members or (graph and not meta):  # an Estimator writes .meta last
            continue
        if basename(folder) == "chief":
            yield Checkpoint(CheckpointKind.BACKUP, dirname(folder) or ".", members)
        elif meta:
            companions = (graph,) if graph else ()
            yield Checkpoint(CheckpointKind.ESTIMATOR, prefix, (*members, meta), companions)
        else:
            yield Checkpoint(CheckpointKind.TF_CHECKPOINT, prefix, members)


def _orbax_folders(files: Mapping[str, Entry]) -> Iterator[Checkpoint]:
    for marker, entry in files.items():
        if basename(marker) == _ORBAX_MARKER and entry.size:
            inside = marker.removesuffix(_ORBAX_MARKER)
            members = tuple(files[path] for path in sorted(files) if path.startswith(inside))
            yield Checkpoint(CheckpointKind.ORBAX, dirname(marker) or ".", members)


def _single_files(files: Mapping[str, Entry]) -> Iterator[Checkpoint]:
    for path, entry in files.items():
        metadata = files.get(_beside(path, "training_metadata.json"))
        if entry.size == 0:
            continue
        if basename(path) == "latest.weights.h5" and metadata:  # Keras 3's BackupAndRestore
            # Keras rewrites both in place, the weights first: older metadata belong to the
            # weights before.
            if metadata.size and metadata.mtime_ns >= entry.mtime_ns:
                yield Checkpoint(CheckpointKind.BACKUP, dirname(path) or ".", (entry, metadata))
        elif path.endswith(".keras"):
            yield Checkpoint(CheckpointKind.KERAS, path, (entry,))
        elif path.endswith((".h5", ".hdf5")):
            yield Checkpoint(CheckpointKind.WEIGHTS, path, (entry,))
        elif path.endswith((".pt", ".pth")):
            yield Checkpoint(CheckpointKind.TORCH, path, (entry,))


def _beside(path: str, name: str) -> str:
    return f"{dirname(path)}/{name}".lstrip("/")
