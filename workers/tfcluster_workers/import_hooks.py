"""Runs our code right after a user's own import of a module, so that nothing is imported for us.

The loader that the ordinary finders give stays in place (pickling, `importlib.resources` and lazy
loaders keep what they know); only its `exec_module` is shadowed on that one instance, once.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from typing import Any, Callable

    Attach = Callable[[ModuleType], None]


class PostImportFinder:
    """First on `sys.meta_path`; says what the others say, and remembers to call back.

    Without its base class: `importlib.abc` imports as much as all of ours together.
    """

    def __init__(self) -> None:
        self._attach: dict[str, list[Attach]] = {}
        self._searching: set[str] = set()

    def after_import(self, name: str, attach: Attach) -> None:
        """Call `attach(module)` once when the module `name` has been executed."""
        if name in sys.modules:
            call_safely(attach, sys.modules[name])
        else:
            self._attach.setdefault(name, []).append(attach)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._attach or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            # Walks sys.meta_path again, us included, hence the guard above.
            spec = importlib.util.find_spec(fullname)
        except ValueError:
            return None
        finally:
            self._searching.discard(fullname)
        if spec is not None:
            self._shadow(spec, fullname)
        return spec

    def _shadow(self, spec: ModuleSpec, name: str) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            for attach in self._attach.pop(name, []):
                call_safely(attach, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return  # a loader with slots: this module goes unwatched


def call_safely(attach: Attach, module: ModuleType) -> None:
    """A fault of ours must never break the user's import."""
    try:
        attach(module)
    except Exception as error:
        from tfcluster_workers import reporting

        reporting.note(f"tfcluster could not watch {module.__name__}: {error!r}")


def install() -> PostImportFinder:
    """Put a finder in front of `sys.meta_path`."""
    finder = PostImportFinder()
    sys.meta_path.insert(0, finder)
    return finder
