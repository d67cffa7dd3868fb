"""What the device consists of, and what it can compute with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_hetero import _C
from torch_hetero.device.identity import DeviceLike, get_device_name, index_of
from torch_hetero.device.memory import mem_get_info


@dataclass(frozen=True)
class DeviceProperties:
    """What the device consists of.

    Attributes:
        name: the CPU and the accelerator, as text.
        total_memory: bytes that tensors may occupy: the configured limit, else the machine's memory.
        multi_processor_count: threads that an operator uses on the CPU.
        accelerator: name of the accelerator, or "none".
    """

    name: str
    total_memory: int
    multi_processor_count: int
    accelerator: str


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Returns the properties of the device."""
    return DeviceProperties(
        name=get_device_name(device),
        total_memory=mem_get_info(device)[1],
        multi_processor_count=torch.get_num_threads(),
        accelerator=_C.accelerator_name(),
    )


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """Returns the vector instruction set of the CPU and the name of the accelerator."""
    index_of(device)
    return {"cpu": torch.backends.cpu.get_cpu_capability(), "accelerator": _C.accelerator_name()}


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that ``torch.autocast("hetero", dtype=...)`` takes."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True: bfloat16 runs everywhere, natively where the hardware can."""
    return True
