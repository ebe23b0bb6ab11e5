"""The section ``runtime.template`` of a spec."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfcluster.spec.fields import Section, documented


class Template(Section):
    """The queue that gives the nodes."""

    queue: str = documented("/var/spool/slots", "Folder of the slots.", "/srv/slots")
    poll_s: Annotated[float, Field(gt=0)] = documented(
        0.1, "Seconds between two checks for free slots.", 5
    )
