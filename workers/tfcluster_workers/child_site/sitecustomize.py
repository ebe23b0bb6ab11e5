"""Prepares each Python that a task starts: its folder is first on their PYTHONPATH (`children`).

The child may be any Python and is rarely the training. So this file runs on Python 2 as well,
imports nothing, never raises, and hides itself: the child has the `sys.path` and the
`sitecustomize` that it would have without tfcluster.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_FOLDER))
_PACKAGES = (
    "horovod", "jax", "keras", "keras_tuner", "tensorflow", "tensorflow_estimator", "tf_keras",
    "torch",
)  # fmt: skip


class WaitingFinder:
    """A finder, first on `sys.meta_path`, that attaches the hooks at the first use of a package."""

    def find_spec(self, fullname, path, target=None):  # type: ignore[no-untyped-def]
        if fullname not in _PACKAGES:
            return None
        try:
            sys.meta_path.remove(self)
            sys.path.insert(0, _ROOT)  # our own package, not an installed one
            try:
                from tfcluster_workers import children
            finally:
                sys.path.remove(_ROOT)
            return children.attach().find_spec(fullname, path, target)
        except Exception:
            return None


sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
sys.path_importer_cache.pop(_FOLDER, None)
if sys.version_info < (3,):
    try:
        os.unlink(__file__ + "c")  # Python 2 writes its bytecode beside the source
    except OSError:
        pass
elif sys.version_info >= (3, 9) and "TFCLUSTER_TASK" in os.environ:
    sys.meta_path.insert(0, WaitingFinder())
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)  # a script may report its progress

del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
