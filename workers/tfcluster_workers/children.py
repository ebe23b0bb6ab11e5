"""Gives the Pythons that a task starts the same hooks as the task itself.

A script may start the training as a child: `subprocess.call([sys.executable, "train.py"])`, a
notebook's kernel, `uv run`. `prepare` puts the folder `child_site` first on PYTHONPATH. Its
`sitecustomize` costs a Python 0.3 ms, and calls `attach` when that imports TensorFlow or Keras.
Nothing is seen of the hooks, unless the child trains (`reporting`).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from tfcluster_workers.hooks.import_hooks import PostImportFinder

_PLACE = os.path.join("tfcluster_workers", "child_site")
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), _PLACE)


def prepare(environ: MutableMapping[str, str]) -> None:
    """Have the children of this task, in which `boot` attaches the hooks, find `child_site`.

    The task may itself be below another one, whose script uses tfcluster.
    """
    before = environ.get("PYTHONPATH")
    folders = before.split(os.pathsep) if before else []  # an empty one is the working directory
    others = [folder for folder in folders if not folder.endswith(_PLACE)]
    environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *others])
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "WaitingFinder"]


def attach() -> PostImportFinder:
    """Attach the hooks in a child, and let the agent know that it has them."""
    from tfcluster_workers import chaos, event_channel, failures
    from tfcluster_workers.hooks import import_hooks, tf_config_changes

    failures.watch_uncaught()
    channel = event_channel.current()
    if isinstance(channel, event_channel.ChildChannel):
        channel.introduce()
        chaos.arm_child()
        if not event_channel.is_pool_worker():  # it may form a cluster of its own
            tf_config_changes.watch_in_child()
    return import_hooks.attach()
