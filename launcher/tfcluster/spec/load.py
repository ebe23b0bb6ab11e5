"""From a file to a spec: all that is wrong with the file at once, each thing with its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from tfcluster.errors import Problem, SpecError
from tfcluster.spec import jsonc, overrides
from tfcluster.spec.fields import Mistake, Path, shorten
from tfcluster.spec.host_choice import NO_CHOICE, HostChoice
from tfcluster.spec.hosts import read_hosts, spread
from tfcluster.spec.model import VERSION, ClusterSpec
from tfcluster.spec.problems import dotted, findings, shown
from tfcluster.spec.selection import select
from tfcluster.spec.source import Source, read_source


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A spec, where it came from, and which of its fields the command line set."""

    spec: ClusterSpec
    path: FilePath | None
    """The file, absolute; None: standard input."""
    folder: FilePath
    """What the spec's relative paths are relative to; of standard input: the working directory."""
    set_paths: frozenset[str]
    """Dotted paths given with ``--set``."""
    problem: Callable[[Mistake], Problem]
    """A finding about the spec, with its place: ``file:line:column``, or the option."""


def load(source: str | FilePath | None = None, *, sets: Sequence[str] = ()) -> ClusterSpec:
    """The spec in `source`; see `load_file`."""
    return load_file(source, sets=sets).spec


def load_file(
    source: str | FilePath | None = None,
    *,
    sets: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    hosts: HostChoice = NO_CHOICE,
) -> LoadedSpec:
    """Read a spec file, ``-`` for standard input, None for ``./tfcluster.json`` or ``.jsonc``.

    `sets` are the ``a.b=c`` of ``--set``; `options` maps another option of the command line to
    the dotted field it sets and the value: ``{"--name": ("name", "exp7")}``; `hosts` take the
    place of the spec's, or leave out some. Raises SpecError with every problem, for whatever the
    file holds.
    """
    return _load(read_source(source), _overrides(sets, options or {}), hosts)


def from_value(
    value: Mapping[str, Any],
    *,
    where: str,
    sets: Sequence[str] = (),
    hosts: HostChoice = NO_CHOICE,
) -> LoadedSpec:
    """A spec made from options (`tfcluster run`); `where` stands before each of its problems."""
    source = Source(json.dumps(value), where, None, FilePath.cwd(), has_places=False)
    return _load(source, _overrides(sets, {}), hosts)


def _load(source: Source, chosen: tuple[overrides.Override, ...], hosts: HostChoice) -> LoadedSpec:
    document = _parse(source)
    value = _apply(document.value, chosen)
    set_paths: Sequence[Path | None] = [override.path for override in chosen]
    if named := read_hosts(hosts):
        value, places = spread(value, named, workers=hosts.workers)
        value, chosen = _apply(value, places), (*chosen, *places)
    check = _Check(value, document, source, chosen)
    spec = check.spec()
    if hosts.include or hosts.exclude:
        left = select(value, spec, hosts)
        check = _Check(left.value, document, source, (*chosen, left.override))
        spec = check.spec()
        set_paths = [left.path_now(path) for path in set_paths if path is not None]
    dotted_paths = frozenset(dotted(path) for path in set_paths if path is not None)
    return LoadedSpec(spec, source.path, source.folder, dotted_paths, check.problem)


def _parse(source: Source) -> jsonc.Document:
    if not source.text.strip():
        fix = "`tfcluster init` writes a first spec"
        raise SpecError([Problem(source.name, "the file is empty", fix)])
    try:
        return jsonc.read(source.text, comments=source.has_comments)
    except jsonc.JsonError as error:
        place = source.place(jsonc.Lines(source.text).place(error.offset))
        raise SpecError([Problem(place, error.message, error.fix)]) from None


def _overrides(
    sets: Sequence[str], options: Mapping[str, tuple[str, Any]]
) -> tuple[overrides.Override, ...]:
    chosen, problems = [], []
    for text in sets:
        try:
            chosen.append(overrides.parse(text))
        except overrides.Refused as refused:
            problems.append(refused.problem)
    if problems:
        raise SpecError(problems)
    named = (
        overrides.Override(tuple(field.split(".")), value, option)
        for option, (field, value) in options.items()
    )
    return (*chosen, *named)


def _apply(value: Any, chosen: Sequence[overrides.Override]) -> Any:
    try:
        return overrides.apply(value, chosen)
    except overrides.Refused as refused:
        raise SpecError([refused.problem]) from None


@dataclass(frozen=True, slots=True)
class _Check:
    """One value held against the model, with the places of its parts."""

    value: Any
    document: jsonc.Document
    source: Source
    chosen: Sequence[overrides.Override]

    def spec(self) -> ClusterSpec:
        """Raises SpecError with all problems, in the order of the file."""
        if newer := self._newer_version():
            raise SpecError([newer])
        repeated = [
            Mistake(path, f"the key {shorten(path[-1])} is written twice", "keep one", on_key=True)
            for path in self.document.repeated
        ]
        spec, found = _validate(self._named())
        if spec is None or repeated:
            ordered = sorted([*repeated, *found], key=self._offset)
            raise SpecError([self.problem(finding) for finding in dict.fromkeys(ordered)])
        return spec

    def _named(self) -> Any:
        """The value with the file's name for a name, where it has none of its own."""
        if not isinstance(self.value, dict) or self.value.get("name") is not None:
            return self.value
        return {**self.value, "name": self.source.spec_name}

    def _newer_version(self) -> Problem | None:
        version = self.value.get("version") if isinstance(self.value, dict) else None
        if isinstance(version, bool) or not isinstance(version, int) or version <= VERSION:
            return None
        message = (
            f"the spec has version {version}, this tfcluster reads {VERSION}: "
            "upgrade it with `pip install --upgrade tfcluster`"
        )
        return Problem(self._place(("version",), on_key=False), message)

    def problem(self, finding: Mistake) -> Problem:
        place = self._place(finding.path, on_key=finding.on_key)
        return Problem(place, self._named_in_full(finding), finding.fix)

    def _named_in_full(self, finding: Mistake) -> str:
        """The message, headed by the field it is about unless it quotes a key itself."""
        if finding.on_key or not finding.path:
            return finding.message
        return f"{shown(finding.path)}: {finding.message}"

    def _place(self, path: Path, *, on_key: bool) -> str:
        if option := self._option(path):
            return option
        return self.source.place(
            jsonc.Lines(self.source.text).place(self._file_offset(path, on_key=on_key))
        )

    def _option(self, path: Path) -> str | None:
        """The option that set the value at `path`, or made the object it stands in."""
        for override in reversed(self.chosen):
            above = override.path[: len(path)] == path and path not in self.document.values
            if path[: len(override.path)] == override.path or (path and above):
                return override.option
        return None

    def _offset(self, finding: Mistake) -> int:
        return self._file_offset(finding.path, on_key=finding.on_key)

    def _file_offset(self, path: Path, *, on_key: bool) -> int:
        places = self.document.keys if on_key else self.document.values
        if path in places:
            return places[path]
        while path not in self.document.values:
            path = path[:-1]
        return self.document.values[path]


def _validate(value: Any) -> tuple[ClusterSpec | None, list[Mistake]]:
    """The spec, or what is wrong; rules between sections are asked even where a field is wrong."""
    if not isinstance(value, dict):
        message, fix = "a spec is a JSON object", 'write {"cluster": …, "job": …}'
        return None, [Mistake((), message, fix)]
    try:
        return ClusterSpec.model_validate(value), []
    except ValidationError as error:
        found = findings(error, value)
    return None, [*found, *_rules_on_the_rest(value, found)]


def _rules_on_the_rest(value: dict[str, Any], found: Sequence[Mistake]) -> Iterator[Mistake]:
    """What the rules between sections say of the sections that are right in themselves."""
    bad = {finding.path[0] for finding in found if finding.path}
    if not bad or "cluster" in bad:
        return
    rest = {key: kept for key, kept in value.items() if key not in bad}
    if "job" in bad:
        rest["job"] = {"command": ["true"]}
    try:
        ClusterSpec.model_validate(rest)
    except ValidationError as error:
        for finding in findings(error, rest):
            if finding.path and finding.path[0] not in bad:
                yield finding
