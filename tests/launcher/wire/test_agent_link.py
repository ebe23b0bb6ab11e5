"""The link to one agent, without a connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tfcluster.agent import catalogue as msg
from tfcluster.wire.agent_link import AgentLink


@pytest.mark.parametrize("says_goodbye", [False, True])
def test_an_agent_has_ended_its_tasks_before_it_says_goodbye(*, says_goodbye: bool) -> None:
    """Nobody has to wait for its lease then, even if nothing proves that its node is gone."""

    async def dial() -> Any:
        raise AssertionError

    async def use() -> bool:
        link = AgentLink(dial, msg.Hello(run_id="r", node="gpu1"), lease_s=60.0)
        if says_goodbye:
            link._handle_report(msg.Bye())
        await link.close()
        return link.has_ended

    assert asyncio.run(use()) is says_goodbye
