"""`SimulatedNodes`: network namespaces of this machine, behind a switch with limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Self

from tfcluster.agent import foreign_json
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.message_fields import replace
from tfcluster.backends.relayed import STARTER, RelayedNodes
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.plans.plan import NodePlan, TaskId
from tfcluster.rundir.chaos import POWER_OFF, SLOW, Fault
from tfcluster.spec.network import Network
from tfcluster.wire.agent_link import AgentLink

_SWITCH = "tfcluster.backends.simulated.switch"
_ANSWER_S = 30.0


class SimulatedNodes(RelayedNodes):
    """The nodes of one switch, which ends with this object's block or with this process."""

    async def __aenter__(self) -> Self:
        """Start the switch; raises SetupError where the system refuses."""
        self._doors: Mapping[str, Mapping[str, str]] = {}
        self._power: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Node that was without power → set when it has some again."""
        self._asking = asyncio.Lock()
        self._disturbances: list[asyncio.Task[None]] = []
        self._switch = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _SWITCH),  # no module of the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C must reach the coordinator only
        )
        try:
            self._doors = (await self._ask(self._first_order()))["doors"]
        except BaseException:
            await self._end_switch()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._disturbances:
            task.cancel()
        await self._end_switch()

    def _first_order(self) -> dict[str, Any]:
        assert self.run.plan is not None
        assert self.run.runtime is not None
        written = self.run.runtime.network
        network = written if isinstance(written, Network) else Network()
        addresses = {task.node: task.host for task in self.run.plan.tasks}
        links = [
            {
                "between": [TaskId.parse(task).file_name for task in link.between],
                "shape": link.to_json(),
            }
            for link in network.links
        ]
        return {"addresses": addresses, "shape": network.to_json(), "links": links}

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        if node.name in self._power:  # a host that is off does not refuse, it is silent
            try:
                async with asyncio.timeout(self.run.lease_s):
                    await self._power[node.name].wait()
            except TimeoutError as error:
                message = "cannot be reached: it has no power"
                raise NodeLostError(message, node=node.name) from error
        return await super().connect(node, token=token, is_fenced=is_fenced)

    def fetch_command(self, node: str, folder: PurePath) -> str:
        return f"cp -r {shlex.quote(str(folder))} ."

    def disturb(self, fault: Fault) -> None:
        self._disturbances.append(asyncio.create_task(self._disturb(fault)))

    async def _disturb(self, fault: Fault) -> None:
        order: dict[str, Any] = {"op": "cut", "node": fault.node}
        if fault.verb == SLOW:
            order = {"op": "rate", "node": fault.node, "rate": fault.rate}
        if fault.verb == POWER_OFF:
            self._power[fault.node].clear()
        try:
            await self._ask(order)
            if fault.for_s is None:
                return
            await asyncio.sleep(fault.for_s)
            await self._ask({"op": "restore", "node": fault.node})
        except SetupError as error:
            self.run.tell(f"'{fault.text}': {error.message}")
        else:
            if fault.verb == POWER_OFF:
                self._power[fault.node].set()
            self.run.tell(f"'{fault.text}' is over: {fault.node} is as before")

    @classmethod
    def argv(cls, node: NodePlan) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", STARTER]

    def configure(self, node: NodePlan, config: AgentConfig) -> AgentConfig:
        return replace(config, namespaces=self._doors[node.name])

    async def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Return the switch's answer. Raises SetupError with its message."""
        stdin, stdout = self._switch.stdin, self._switch.stdout
        assert stdin is not None
        assert stdout is not None
        async with self._asking:
            try:
                stdin.write(json.dumps(order).encode() + b"\n")
                async with asyncio.timeout(_ANSWER_S):
                    await stdin.drain()
                    line = await stdout.readline()
            except (OSError, TimeoutError):
                line = b""
        answer = foreign_json.parse_json_object(line) if line else await self._why_silent()
        if "message" in answer:
            raise SetupError(str(answer["message"]), fix=str(answer.get("fix", "")))
        return answer

    async def _why_silent(self) -> dict[str, str]:
        await self._end_switch()
        assert self._switch.stderr is not None
        words = (await self._switch.stderr.read()).decode(errors="replace").strip()
        return {"message": f"the simulated network ended: {words or 'it said nothing'}"}

    async def _end_switch(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._switch.kill()
        await self._switch.wait()
