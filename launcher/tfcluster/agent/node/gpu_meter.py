"""The use and the memory of NVIDIA GPUs, asked of the driver's library (NVML) by a small process.

A call into a hanging driver cannot be interrupted, and the agent must never hang: so a fork of it
asks, and the agent takes the newest answer that has come. It is forked when a task that sees GPUs
is measured for the first time, and only where the library and the driver's device exist.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket

from tfcluster.agent import Any, NoReturn
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.processes import leave_agent

LIBRARY = "libnvidia-ml.so.1"
DEVICE = "/dev/nvidiactl"
_ANSWER_BYTES = 64 << 10
_TEXT_BYTES = 96


class GpuMeter:
    """The agent's end: `ask` asks once, and `use_of` shows what the last question was answered."""

    def __init__(self, library: str = LIBRARY, device: str = DEVICE) -> None:
        self._library, self._device = library, device
        self._socket: socket.socket | None = None
        self._is_wanted = self._is_over = self._waits = False
        self._gpus: list[tuple[str, str, float | None, int]] = []
        """UUID, model, use from 0 to 1 (None: the driver does not say) and used bytes of each GPU,
        in the order of the PCI bus."""
        self.pid = 0
        """The process that asks; 0 if there is none."""

    def use_of(
        self, visible: str | None, order: str | None = None
    ) -> tuple[float | None, int | None]:
        """Return the mean use and the used bytes of the GPUs in a task's CUDA_VISIBLE_DEVICES.

        Both are of all processes on these GPUs, and None where they are not known: of a part of a
        GPU (``MIG-…``), and of numbers where CUDA counts by speed (`order`, the task's
        CUDA_DEVICE_ORDER, is not ``PCI_BUS_ID``) and the GPUs differ.
        """
        if visible is not None and visible.strip() in ("", "-1"):
            return None, None
        self._is_wanted = True
        has_numbers = order == "PCI_BUS_ID" or len({model for _, model, _, _ in self._gpus}) == 1
        visible_gpus = [
            (use, used)
            for index, (uuid, _, use, used) in enumerate(self._gpus)
            if _is_visible(index if has_numbers else None, uuid, visible)
        ]
        uses = [use for use, _ in visible_gpus if use is not None]
        mean = round(sum(uses) / len(uses), 3) if uses else None
        return mean, sum(used for _, used in visible_gpus) if visible_gpus else None

    def ask(self) -> None:
        """Read the last answer and ask again; do nothing before a task with GPUs was measured."""
        if not self._is_wanted or self._is_over:
            return
        if self._socket is None and not os.path.exists(self._device):
            self._is_over = True
            return
        try:
            if self._socket is None:
                self._socket = self._start()
            if self._waits:
                answer = self._socket.recv(_ANSWER_BYTES)
                if not answer:  # it has ended: it could not load the library
                    self.close()
                    return
                self._gpus = [tuple(gpu) for gpu in parse_json_object(answer)["gpus"]]
            self._waits = bool(self._socket.send(b"?"))
        except BlockingIOError:  # the driver hangs: its last answer is no longer true
            self._gpus = []
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the socket, with which the process ends."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._gpus, self.pid, self._is_over = None, [], 0, True

    def _start(self) -> socket.socket:
        ours, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent = os.getpid()
        with its_end:
            try:
                self.pid = os.fork()
            except OSError:  # no free process: the next call tries again
                ours.close()
                raise
            if self.pid == 0:
                _become_asker(its_end, self._library, agent)
        ours.setblocking(False)
        return ours


def _is_visible(index: int | None, uuid: str, visible: str | None) -> bool:
    parts = [part.strip() for part in (visible or "").split(",")]
    return visible is None or any(
        part == str(index) or (part.startswith("GPU-") and uuid.startswith(part)) for part in parts
    )


def _become_asker(its_end: socket.socket, library: str, agent: int) -> NoReturn:
    try:
        with socket.socket(fileno=leave_agent(its_end.detach(), agent)) as questions:
            nvml = ctypes.CDLL(library)
            handles = _handles(nvml)
            while questions.recv(1):
                gpus = [_measure(nvml, handle) for handle in handles]
                questions.send(json.dumps({"gpus": gpus}).encode())
    except BaseException:  # no such library, or the agent has ended
        pass
    finally:
        os._exit(0)


def _handles(nvml: Any) -> list[Any]:
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        raise OSError("the driver does not answer")
    handles = [ctypes.c_void_p() for _ in range(count.value)]
    for index, handle in enumerate(handles):
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    return handles


def _measure(nvml: Any, handle: Any) -> tuple[str, str, float | None, int]:
    """Return UUID, model, use and used bytes (nvml.h: nvmlUtilization_t, nvmlMemory_t)."""
    uuid = ctypes.create_string_buffer(_TEXT_BYTES)
    model = ctypes.create_string_buffer(_TEXT_BYTES)
    use, memory = (ctypes.c_uint * 2)(), (ctypes.c_ulonglong * 3)()
    nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(_TEXT_BYTES))
    nvml.nvmlDeviceGetName(handle, model, ctypes.c_uint(_TEXT_BYTES))
    is_unknown = nvml.nvmlDeviceGetUtilizationRates(handle, use)  # of a GPU that is cut into parts
    nvml.nvmlDeviceGetMemoryInfo(handle, memory)
    use_now = None if is_unknown else use[0] / 100
    return uuid.value.decode(), model.value.decode(), use_now, memory[2]
