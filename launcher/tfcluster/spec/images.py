"""Names of images that this version makes and looks for."""

from __future__ import annotations

from typing import Final

DEFAULT_IMAGE: Final = "tfcluster-worker:latest"
"""What `tfcluster build` makes, and containers are started from where a spec names no image."""
