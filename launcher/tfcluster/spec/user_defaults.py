"""The user's own defaults: a file with profiles, whose values fill what a spec leaves out.

The file is ``$TFCLUSTER_CONFIG``, else ``${XDG_CONFIG_HOME:-~/.config}/tfcluster/config.yaml``.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tfcluster.errors import Problem, SpecError, UsageError
from tfcluster.spec import FieldPath, UserDefault, mask_webhook, published_schema, shorten
from tfcluster.spec.fields import Mistake, Section, drop_x_keys
from tfcluster.spec.jsonc import Document
from tfcluster.spec.overrides import Override, apply
from tfcluster.spec.problems import explain_errors, join_path, repeated_keys, show, unknown_key
from tfcluster.spec.sections import Checkpoints, Resources, Runtime, Supervision
from tfcluster.spec.source import SpecSource, read_text

VARIABLE = "TFCLUSTER_CONFIG"
ALWAYS = "default"
"""The profile that every spec gets, after the one that ``--profile`` names."""
_EXAMPLE = "default:\n      runtime:\n        backend: docker"


class Profile(Section):
    """The sections of a spec that a profile may set; an empty one is null in YAML."""

    runtime: Runtime | None = None
    resources: Resources | None = None
    supervision: Supervision | None = None
    checkpoints: Checkpoints | None = None


@dataclass(frozen=True, slots=True)
class Default(Override):
    """One field that a profile sets; `option` is its place in the file."""

    profile: str
    file: str

    @property
    def host(self) -> str | None:
        """The host whose setting it is; None if it is that of all hosts, or of none."""
        match self.path:
            case ("runtime", "hosts", str(host), *_) if host != "*":
                return host
        return None

    def shown(self) -> UserDefault:
        """Return the default for a plan."""
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        value = None if "env" in self.path else mask_webhook(text)
        return UserDefault(join_path(self.path), value, self.profile, self.file)


def fill(
    value: Any, defaults: Collection[Default], *, hosts: Collection[str] = ()
) -> tuple[Any, tuple[Default, ...]]:
    """Return the spec's `value` with the `defaults` that it leaves room for, and those defaults.

    The first of several for one field counts. Settings of single hosts are only those of `hosts`.
    """
    used: list[Default] = []
    for default in defaults:
        if default.host in (None, *hosts) and _is_free(value, default.path):
            value = apply(value, [default])
            used.append(default)
    return value, tuple(used)


def _is_free(value: Any, path: FieldPath) -> bool:
    """Return whether nothing is written at `path`, and no other value where an object would be."""
    for key in path:
        if not isinstance(value, dict):
            return False
        if key not in value:
            return True
        value = value[key]
    return False


def read_defaults(
    profile: str | None,
    *,
    is_complete: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Default, ...]:
    """Return the fields of `profile`, then those of the profile `default`.

    `is_complete`: the latter are not needed. Raises SpecError with every problem of the file, also
    in other profiles, and UsageError for a profile that it does not have.
    """
    if is_complete and profile is None:
        return ()
    source, document = _read(environ)
    profiles = drop_x_keys(document.value or {})
    if problems := _find_problems(profiles, source, document):
        raise SpecError(problems)
    if profile is not None and profile not in (ALWAYS, *profiles):
        raise _unknown_profile(profile, profiles, source)
    named = () if profile is None else (profile,)
    return tuple(
        Default(path, value, source.place(document.offset((name, *path))), name, source.name)
        for name in dict.fromkeys(named if is_complete else (*named, ALWAYS))
        if name in profiles
        for path, value in _leaves(profiles[name] or {})
    )


def profile_names(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the profiles of the file; raises SpecError."""
    return tuple(drop_x_keys(_read(environ)[1].value or {}))


def _read(environ: Mapping[str, str]) -> tuple[SpecSource, Document]:
    """Return the file, which is empty if the user has none."""
    folder = environ.get("XDG_CONFIG_HOME") or "~/.config"
    named = environ.get(VARIABLE)
    name = named or os.path.join(folder, "tfcluster", "config.yaml")
    path = Path(os.path.expanduser(name)).absolute()
    home = os.path.expanduser("~")
    name = os.path.join("~", path.relative_to(home)) if path.is_relative_to(home) else str(path)
    text = ""
    if named or os.path.lexists(path):
        text = read_text(name, "configuration", f"check ${VARIABLE}, which names it")
    source = SpecSource(text, name, path, path.parent)
    is_empty = not text.strip()
    return source, Document(None, {(): 0}, {}, ()) if is_empty else source.document()


def _find_problems(profiles: Any, source: SpecSource, document: Document) -> list[Problem]:
    mistakes = [*repeated_keys(document), *_find_mistakes(profiles)]
    places = {each: document.offset(each.path, on_key=each.on_key) for each in mistakes}
    return [
        Problem(source.place(places[each]), show(each), each.fix)
        for each in sorted(places, key=places.__getitem__)
    ]


def _find_mistakes(profiles: Any) -> Iterator[Mistake]:
    if not isinstance(profiles, dict):
        yield Mistake((), "the file must be an object of profiles", f"write\n    {_EXAMPLE}")
        return
    for name, profile in profiles.items():
        if name in Profile.model_fields:
            fix = f"write it below a profile:\n    {_EXAMPLE}"
            yield Mistake((name,), f"{name} is not in a profile", fix, on_key=True)
        else:
            yield from (mistake.below(name) for mistake in _find_mistakes_in(profile))


def _find_mistakes_in(profile: Any) -> Iterator[Mistake]:
    if profile is None:
        return
    if not isinstance(profile, dict):
        fix = 'write for example {"runtime": {"backend": "docker"}}'
        yield Mistake((), f"expected an object, not {shorten(profile)}", fix)
        return
    known = Profile.model_fields
    for key in drop_x_keys(profile).keys() - known.keys():
        if key in published_schema.keys_at(()):
            fix = f"a profile sets {', '.join(known)}; the rest belongs to the spec"
            yield Mistake((key,), f"a profile cannot set {shorten(key)}", fix, on_key=True)
        else:
            yield unknown_key((key,))
    valid = {key: section for key, section in profile.items() if key in known}
    try:
        Profile.model_validate(valid)
    except ValidationError as error:
        yield from explain_errors(error, valid)


def _leaves(value: Mapping[str, Any], path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Yield the path and value of each field that is no object, and of empty objects."""
    for key, child in drop_x_keys(value).items():
        if isinstance(child, dict) and child:
            yield from _leaves(child, (*path, key))
        elif path or child is not None:  # an empty section
            yield (*path, key), child


def _unknown_profile(profile: str, profiles: Collection[str], source: SpecSource) -> UsageError:
    message = f"--profile: {source.name} has no profile {shorten(profile)}"
    if not profiles:
        return UsageError(message, fix=f"write it:\n    {_EXAMPLE.replace(ALWAYS, profile)}")
    near = difflib.get_close_matches(profile, profiles, n=1)
    fix = f"did you mean {near[0]}?" if near else f"it has {', '.join(profiles)}"
    return UsageError(message, fix=fix)
