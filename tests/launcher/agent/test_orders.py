"""An agent refuses invalid orders and goes on, whatever they hold."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.launcher.agent.conftest import Rig
from tests.launcher.messages import kinds_of, sample

from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import parse
from tfcluster.agent.protocol import ProtocolError

DEEP = json.loads("[" * 500 + "]" * 500)
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 1 << 63, 10**400, 1.5, "", " ", "a\0b", "\ud800"),
    *("x" * 50_000, [], [[]], {}, {"": {"": 1}}, DEEP),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.sampled_from(kinds_of(msg.Order)), st.data())
def test_an_order_is_read_or_refused_whatever_it_holds(
    kind: type[msg.Order], data: st.DataObject
) -> None:
    order = sample(kind)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*order, "of_another_kind"]))
        order[name] = data.draw(VALUES)
    with contextlib.suppress(ProtocolError):
        found = parse(order, msg.Order)
        assert found is None or found.type == order["type"]


def is_valid(order: dict[str, Any]) -> bool:
    try:
        return parse(order, msg.Order) is not None
    except ProtocolError:
        return False


def test_an_agent_survives_orders_with_one_wrong_field(rig: Rig) -> None:
    wrong = [
        sample(kind) | {name: value}
        for kind in kinds_of(msg.Order)
        for name in kind.fields
        for value in WRONG
    ]
    invalid = [order for order in wrong if not is_valid(order) and order["type"] != "hello"]
    assert len(invalid) > 300
    for order in invalid:
        rig.peer.send(**{"type_" if name == "type" else name: order[name] for name in order})
        assert "whose" in rig.peer.take("refused")["reason"]
    assert rig.start("true")["type"] == "task_started"
    assert rig.exited()["exit_code"] == 0
