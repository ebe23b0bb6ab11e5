"""The agent: one process per node that starts, watches, stops and reports that node's tasks.

Standard library only, Python ≥ 3.9: the agent runs on nodes that have nothing of tfcluster
installed. It stays in memory beside every training run, so it avoids modules that cost memory or
start-up time (asyncio, subprocess, dataclasses).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn
else:  # importing typing would cost a megabyte; annotations are not evaluated
    Any = NoReturn = object

__all__ = ["Any", "NoReturn"]
