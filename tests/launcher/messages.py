"""Messages as tests write them: plain JSON on one side, the catalogue's classes on the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import Message, parse
from tfcluster.wire.messages import read_report as read_report


def plain(message: Message) -> dict[str, Any]:
    """Return a message as it is sent."""
    found: dict[str, Any] = json.loads(json.dumps(message.to_json(), default=vars))
    return found


def read_order(message: Mapping[str, Any]) -> msg.Order:
    """Return the order, as an agent reads it."""
    order = parse(message, msg.Order)
    assert order is not None
    return order


def task_report(kind: str, **facts: Any) -> msg.TaskReport:
    """Return a report of a task, of which a test may leave out what it does not need."""
    (cls,) = (cls for cls in msg.TaskReport.__subclasses__() if cls.type == kind)
    return cls(**facts)
