"""The loader of specs: file, options and hosts in, `LoadedSpec` out, or all problems at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tfcluster.agent.error_text import describe_error
from tfcluster.errors import Problem, SpecError
from tfcluster.spec import UNCHANGED, FieldPath, PlanOptions, UserDefault, jsonc, overrides
from tfcluster.spec.allocation import Allocation, place, takes_allocation
from tfcluster.spec.fields import Mistake
from tfcluster.spec.hosts import read_hosts, select, spread
from tfcluster.spec.model import VERSION, ClusterSpec
from tfcluster.spec.problems import explain_errors, join_path, repeated_keys, show
from tfcluster.spec.source import SpecSource, read_source
from tfcluster.spec.user_defaults import fill, read_defaults


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A spec, its source, and the fields that the command line set."""

    spec: ClusterSpec
    path: Path | None
    """The absolute path of the file; None: standard input."""
    folder: Path
    """The folder to which the spec's paths are relative; the working directory for stdin."""
    set_paths: frozenset[str]
    """Dotted paths given with ``--set``."""
    defaults: tuple[UserDefault, ...]
    """The fields that the user's defaults set."""
    problem: Callable[[Mistake], Problem]
    """Turns a mistake into a problem with its place: ``file:line:column``, or the option."""
    allocation: Allocation | None = None
    """The launcher that has given the addresses of the cluster; None: they are the spec's."""


def load(
    source: str | Path | Mapping[str, Any] | None = None,
    options: PlanOptions = UNCHANGED,
    *,
    where: str = "spec",
    is_complete: bool = False,
    find_allocation: Callable[[], Allocation | None] = lambda: None,
) -> LoadedSpec:
    """Return the spec in a file, ``-`` for standard input, None for ``./tfcluster.json`` or so.

    The source may be a value, too, whose problems begin with `where`. Of `options` the overrides,
    hosts and profile count. The user's defaults fill what the spec leaves out; with `is_complete`
    it holds them already, as the spec of a run does, and only a profile that `options` names
    counts. `find_allocation` is asked for the tasks' addresses if the spec leaves them open. Raises
    SpecError with every problem, whatever the files contain.
    """
    read = _source_of(source, where) if isinstance(source, Mapping) else read_source(source)
    hosts, chosen = options.hosts, _overrides(options)
    document = read.document()
    value = overrides.apply(document.value, chosen) if chosen else document.value
    set_paths: Sequence[FieldPath | None] = [override.path for override in chosen]
    if hosts.hosts is not None or hosts.hostfile is not None:
        value, places = spread(value, read_hosts(hosts), workers=hosts.workers)
        value, chosen = overrides.apply(value, places), (*chosen, *places)
    defaults = read_defaults(options.profile, is_complete=is_complete)
    value, filled = fill(value, defaults)
    allocation = find_allocation() if takes_allocation(value) else None
    if allocation is not None:
        value, places = place(value, allocation)
        value, chosen = overrides.apply(value, places), (*chosen, *places)
    check = _Check(value, document, read, (*filled, *chosen))
    spec = check.spec()
    if any(default.host is not None for default in defaults):  # which hosts there are is known now
        value, of_hosts = fill(value, defaults, hosts=spec.known_hosts)
        filled = (*filled, *of_hosts)
        check = _Check(value, document, read, (*filled, *chosen))
        spec = check.spec()
    chosen = (*filled, *chosen)
    if hosts.include or hosts.exclude:
        selection = select(value, spec, hosts)
        check = _Check(selection.value, document, read, (*chosen, selection.override))
        spec = check.spec()
        set_paths = [selection.new_path(path) for path in set_paths if path is not None]
    dotted_paths = frozenset(join_path(path) for path in set_paths if path is not None)
    shown = tuple(default.shown() for default in filled)
    return LoadedSpec(spec, read.path, read.folder, dotted_paths, shown, check.problem, allocation)


def _source_of(value: Mapping[str, Any], where: str) -> SpecSource:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        fix = "use strings, numbers, booleans, None, lists and dictionaries"
        raise SpecError.at(where, f"not JSON: {describe_error(error)}", fix) from None
    return SpecSource(text, where, None, Path.cwd(), has_places=False)


def _overrides(options: PlanOptions) -> tuple[overrides.Override, ...]:
    chosen: list[overrides.Override] = []
    problems: list[Problem] = []
    for text in options.sets:
        try:
            chosen.append(overrides.parse(text))
        except SpecError as error:
            problems += error.problems
    for name, value in options.env.items():
        try:
            chosen.append(overrides.of_variable(name, value))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    named = (
        overrides.Override(tuple(field.split(".")), value, option)
        for option, (field, value) in options.fields.items()
        if value is not None
    )
    return (*chosen, *named)


@dataclass(frozen=True, slots=True)
class _Check:
    """The validation of one value, with the places of its parts."""

    value: Any
    document: jsonc.Document
    source: SpecSource
    chosen: Sequence[overrides.Override]

    def spec(self) -> ClusterSpec:
        """Return the spec; raises SpecError with all problems, in the order of the file."""
        if newer := self._newer_version():
            raise SpecError([newer])
        repeated = repeated_keys(self.document)
        spec, mistakes = _validate(self._with_name())
        if spec is None or repeated:
            ordered = sorted([*repeated, *mistakes], key=self._file_offset)
            raise SpecError([self.problem(mistake) for mistake in dict.fromkeys(ordered)])
        return spec

    def problem(self, mistake: Mistake) -> Problem:
        """Return `mistake` with its place and the name of its field."""
        return Problem(self._place(mistake), show(mistake), mistake.fix)

    def _with_name(self) -> Any:
        """Return the value, named after the file if it has no name."""
        if not isinstance(self.value, dict) or self.value.get("name") is not None:
            return self.value
        return {**self.value, "name": self.source.spec_name}

    def _newer_version(self) -> Problem | None:
        version = self.value.get("version") if isinstance(self.value, dict) else None
        if isinstance(version, bool) or not isinstance(version, int) or version <= VERSION:
            return None
        message = (
            f"the spec has version {version}, but this tfcluster reads version {VERSION}: "
            "upgrade it with `pip install --upgrade tfcluster`"
        )
        return Problem(self._place(Mistake(("version",), message)), message)

    def _place(self, mistake: Mistake) -> str:
        return self._option(mistake.path) or self.source.place(self._file_offset(mistake))

    def _option(self, path: FieldPath) -> str | None:
        """Return the option that set the value at `path`, or created the object around it."""
        for override in reversed(self.chosen):
            is_above = override.path[: len(path)] == path and path not in self.document.values
            if path[: len(override.path)] == override.path or (path and is_above):
                return override.option
        return None

    def _file_offset(self, mistake: Mistake) -> int:
        return self.document.offset(mistake.path, on_key=mistake.on_key)


def _validate(value: Any) -> tuple[ClusterSpec | None, list[Mistake]]:
    """Return the spec, or its mistakes, including broken rules between the valid sections."""
    if not isinstance(value, dict):
        message, fix = "a spec must be an object", 'write {"cluster": …, "job": …}'
        return None, [Mistake((), message, fix)]
    try:
        return ClusterSpec.model_validate(value), []
    except ValidationError as error:
        mistakes = explain_errors(error, value)
    return None, [*mistakes, *_check_valid_sections(value, mistakes)]


def _check_valid_sections(value: dict[str, Any], mistakes: Sequence[Mistake]) -> Iterator[Mistake]:
    """Yield broken rules between the sections that have none of `mistakes`."""
    bad = {mistake.path[0] for mistake in mistakes if mistake.path}
    if not bad or "cluster" in bad:
        return
    valid = {key: section for key, section in value.items() if key not in bad}
    if "job" in bad:
        valid["job"] = {"command": ["true"]}
    try:
        ClusterSpec.model_validate(valid)
    except ValidationError as error:
        for mistake in explain_errors(error, valid):
            if mistake.path and mistake.path[0] not in bad:
                yield mistake
