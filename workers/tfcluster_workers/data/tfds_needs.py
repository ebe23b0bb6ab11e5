"""Provides `importlib_resources` for TensorFlow Datasets on new Python versions.

TFDS 4.9.10 imports it, but nothing installs it on Python 3.11 and later, and every
`download_and_prepare` fails. The standard library's module has everything that TFDS uses of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys


def supply() -> None:
    """Have `import importlib_resources` find the standard library's `importlib.resources`."""
    if sys.version_info < (3, 11) or "importlib_resources" in sys.modules:
        return
    if importlib.util.find_spec("importlib_resources") is not None:
        return
    importlib.import_module("importlib.resources.abc")
    sys.modules["importlib_resources"] = importlib.import_module("importlib.resources")
