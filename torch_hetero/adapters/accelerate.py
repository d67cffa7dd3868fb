"""accelerate beyond its choice of a device: its lists of devices, and what memory there is.

- ``mixed_precision="fp16"`` checks a list of devices, and makes the gradient scaler of the machine's accelerator;
- ``dynamo_backend`` takes the names of an enumeration, and ``accelerate launch`` those of a list;
- ``device_map="auto"`` gets each device's memory from the module that the device has in torch;
- caches are emptied device by device.

Source: accelerate 1.15.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_hetero.adapters.choice import admit, is_accelerator


def adapt_accelerator(module: ModuleType) -> None:
    """Adapts ``accelerate.accelerator``."""
    admit(module.Accelerator.__init__, beside="npu")


def adapt_modeling(module: ModuleType) -> None:
    """Adapts ``accelerate.utils.modeling``."""
    scaler = module.get_grad_scaler
    memory = module.get_max_memory

    @functools.wraps(scaler)
    def get_grad_scaler(distributed_type: Any = None, **named: Any) -> Any:
        from accelerate.state import PartialState

        chosen = PartialState._shared_state.get("device")
        if distributed_type != module.DistributedType.FSDP and chosen is not None and chosen.type == "hetero":
            return torch.amp.GradScaler("hetero", **named)
        return scaler(distributed_type, **named)

    @functools.wraps(memory)
    def get_max_memory(max_memory: Any = None) -> Any:
        if not is_accelerator():
            return memory(max_memory)
        if max_memory is not None:
            # Its check of a device's number counts the GPUs; there is one hetero, number 0.
            # Sizes as text become numbers in the caller's mapping too, which transformers relies on.
            for key, size in max_memory.items():
                max_memory[key] = module.convert_file_size_to_int(size) if isinstance(size, str) else size
            others = {key: size for key, size in max_memory.items() if key != 0}
            return {**{key: size for key, size in max_memory.items() if key == 0}, **memory(others)}
        found = memory()
        if not torch.hetero.config.memory_limit:
            found.pop("cpu", None)  # the same memory
        return {0: torch.hetero.mem_get_info()[0], **found}

    module.get_grad_scaler = get_grad_scaler
    module.get_max_memory = get_max_memory


def adapt_memory(module: ModuleType) -> None:
    """Adapts ``accelerate.utils.memory``."""
    clear = module.clear_device_cache

    @functools.wraps(clear)
    def clear_device_cache(*arguments: Any, **named: Any) -> None:
        clear(*arguments, **named)
        if is_accelerator():
            torch.hetero.empty_cache()

    module.clear_device_cache = clear_device_cache


def adapt_dataclasses(module: ModuleType) -> None:
    """Adapts ``accelerate.utils.dataclasses``."""
    # An enumeration with members cannot be subclassed, and libraries compare members by identity.
    backends = module.DynamoBackend
    if "HETERO" in backends.__members__:
        return
    member = str.__new__(backends, "HETERO")
    member._name_ = member._value_ = "HETERO"
    member.__objclass__ = backends
    member._sort_order_ = len(backends.__members__)
    backends.HETERO = member
    backends._member_names_.append("HETERO")
    backends._member_map_["HETERO"] = backends._value2member_map_["HETERO"] = member


def adapt_commands(module: ModuleType) -> None:
    """Adapts ``accelerate.commands.config.config_utils``."""
    module.DYNAMO_BACKENDS.append("HETERO")


def adapt_hooks(module: ModuleType) -> None:
    """Adapts ``accelerate.hooks``."""
    module._accelerate_added_attributes.append("hetero")
