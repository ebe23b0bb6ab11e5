"""``python -m tfcluster``: the command `tfcluster`."""

from tfcluster.cli.main import entry

entry()
