"""Measures the learner's GPUs by NVIDIA's library NVML, whose handles stay open.

`pynvml` is imported only where the library is there: it belongs to the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlctl.contract.measured import utilisation as names

_LIBRARY = "libnvidia-ml.so.1"
_THROTTLING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's reasons for a low clock; the others don't mean that the GPU is held back."""
_XID = 8
"""NVML's type of a critical error."""


class Gpus:
    """The GPUs of one learner."""

    def __init__(self, nvml: Any, handles: Sequence[tuple[int, Any]]) -> None:
        self._nvml = nvml
        self._handles = handles
        self._xids: dict[str, int] = {}
        self._throttling = dict.fromkeys((index for index, _ in handles), 0)
        self._events = self._watch_errors()

    def sample(self) -> dict[str, float]:
        """Return what each GPU does now; what one can't tell is left out."""
        self._take_errors()
        found: dict[str, float] = {}
        for index, handle in self._handles:
            for name, value in self._one(index, handle).items():
                found[names.gpu_name(index, name)] = value
        return found

    def texts(self) -> dict[str, str]:
        """Return in words why GPUs were slowed down since the last call."""
        found = {}
        for index, bits in self._throttling.items():
            words = [word for bit, word in _THROTTLING.items() if bits & bit]
            if words:
                found[names.gpu_name(index, names.GPU_THROTTLE_REASONS)] = ", ".join(words)
            self._throttling[index] = 0
        return found

    def _one(self, index: int, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        readers: dict[str, Callable[[], float]] = {
            names.GPU_PERCENT: lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            names.GPU_POWER_W: lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            names.GPU_TEMPERATURE_C: lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
            names.GPU_ECC_ERRORS: lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
            names.GPU_THROTTLED_PERCENT: lambda: self._throttled(index, handle),
        }
        found = {}
        for name, read in readers.items():
            with contextlib.suppress(nvml.NVMLError):
                found[name] = float(read())
        with contextlib.suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            found[names.GPU_MEMORY_BYTES] = float(memory.used)
            found[names.GPU_MEMORY_TOTAL_BYTES] = float(memory.total)
        if (xid := self._xids.get(_key(handle))) is not None:
            found[names.GPU_XID] = float(xid)
        return found

    def _throttled(self, index: int, handle: Any) -> float:
        bits = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        held_back = sum(bit for bit in _THROTTLING if bits & bit)
        self._throttling[index] |= held_back
        return 100.0 if held_back else 0.0

    def _watch_errors(self) -> Any:
        """Return NVML's set of events; None where it has none, as in virtual machines."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for _, handle in self._handles:
                nvml.nvmlDeviceRegisterEvents(handle, _XID, events)
        except nvml.NVMLError:
            return None
        return events

    def _take_errors(self) -> None:
        if self._events is None:
            return
        with contextlib.suppress(self._nvml.NVMLError):  # none has happened
            for _ in range(100):
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                if event.eventType & _XID:
                    self._xids[_key(event.device)] = event.eventData


def _key(handle: Any) -> str:
    """Return what is equal for two handles of one GPU."""
    return str(ctypes.cast(handle, ctypes.c_void_p).value)


def has_library() -> bool:
    """Return whether NVIDIA's driver has brought its library."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def open_gpus(env: Mapping[str, str], per_learner: int) -> Gpus | None:
    """Return the GPUs of a learner; None if it has none, or NVML does not work.

    Args:
        env: the learner's environment: CUDA_VISIBLE_DEVICES and LOCAL_RANK.

    Raises:
        ImportError: there are GPUs, but the Python package nvidia-ml-py is missing.
    """
    if per_learner < 1 or not has_library():
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [
            (index, _handle(pynvml, device))
            for index, device in enumerate(_own(_visible(pynvml, env), env, per_learner))
        ]
        return Gpus(pynvml, handles) if handles else None
    except (pynvml.NVMLError, ValueError):
        return None


def _visible(nvml: Any, env: Mapping[str, str]) -> list[str]:
    """Return numbers or ids of the GPUs that the learner sees, in its order."""
    devices = env.get("CUDA_VISIBLE_DEVICES")
    if devices is None:
        return [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    return [device.strip() for device in devices.split(",") if device.strip()]


def _own(visible: list[str], env: Mapping[str, str], per_learner: int) -> list[str]:
    """Return the learner's share if all learners of the node see all GPUs."""
    if len(visible) <= per_learner:
        return visible
    local_rank = env.get("LOCAL_RANK", "")
    first = int(local_rank) * per_learner if local_rank.isdecimal() else 0
    return visible[first:][:per_learner]


def _handle(nvml: Any, device: str) -> Any:
    # A number counts as NVML does, by the bus; CUDA may order unlike GPUs of a node differently.
    if device.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(device))
    return nvml.nvmlDeviceGetHandleByUUID(device)
