"""transformers: ``Trainer`` and pipelines use hetero, and bfloat16 is one of the types that the machine has.

``TrainingArguments`` asks for the devices it knows even when accelerate, which it asks first, found another one. A
pipeline's device may be a number, of the first of these devices that is there. A cache that is offloaded to the CPU
waits for streams of CUDA; on hetero there is no need to offload it, since what an accelerator has no room for leaves it
anyway. ``generate(compile_config=)`` compiles on a list of devices. Continuous
batching asks for the memory of the machine, and not for hetero's limit.

Source: transformers 5.23.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import torch

from torch_hetero.adapters.choice import is_accelerator


def adapt_import_utils(module: ModuleType) -> None:
    """Adapts ``transformers.utils.import_utils``."""
    available = module.is_torch_bf16_gpu_available

    @functools.wraps(available)
    def is_torch_bf16_gpu_available() -> bool:
        return available() or (is_accelerator() and torch.hetero.is_bf16_supported())

    module.is_torch_bf16_gpu_available = is_torch_bf16_gpu_available


def adapt_training_args(module: ModuleType) -> None:
    """Adapts ``transformers.training_args``."""
    devices = vars(module.TrainingArguments)["_setup_devices"]
    set_up = devices.func

    @functools.wraps(set_up)
    def set_up_devices(self: Any) -> Any:
        device = set_up(self)
        state = self.distributed_state
        if state is None or state.device.type != "hetero":
            return device
        self._n_gpu = 0  # what it counts on a machine with GPUs, where accelerate was told to use hetero
        return state.device

    devices.func = set_up_devices


def adapt_pipelines(module: ModuleType) -> None:
    """Adapts ``transformers.pipelines.base``."""
    make = module.Pipeline.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        if not is_accelerator():
            make(self, *arguments, **named)
            return
        bound = signature.bind(self, *arguments, **named)
        placed = getattr(bound.arguments["model"], "hf_device_map", None)
        device = bound.arguments.get("device")
        if placed is None:
            device = 0 if device is None else device
            if isinstance(device, int) and device >= 0:
                bound.arguments["device"] = f"hetero:{device}"
        make(*bound.args, **bound.kwargs)
        # A model that accelerate placed names no device, and its first one may be a number.
        if placed is not None and isinstance(first := next(iter(placed.values())), int):
            self.device = torch.device("hetero", first)

    module.Pipeline.__init__ = __init__


def adapt_cache_utils(module: ModuleType) -> None:
    """Adapts ``transformers.cache_utils``."""
    update_cache = module.Cache.update

    @functools.wraps(update_cache)
    def update(self: Any, key_states: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if self.offloading and key_states.device.type == "hetero":
            self.offloading = False
        return update_cache(self, key_states, *arguments, **named)

    module.Cache.update = update


def adapt_generation(module: ModuleType) -> None:
    """Adapts ``transformers.generation.utils``."""
    is_valid = module.GenerationMixin._valid_auto_compile_criteria

    @functools.wraps(is_valid)
    def _valid_auto_compile_criteria(self: Any, model_kwargs: dict[str, Any], generation_config: Any) -> bool:
        # Compiles only if the caller asked for it, as on the CPU: recorded operators are planned once anyway.
        if generation_config.compile_config is not None and self.device.type == "hetero":
            generation_config.compile_config._compile_all_devices = True
        return is_valid(self, model_kwargs, generation_config)

    module.GenerationMixin._valid_auto_compile_criteria = _valid_auto_compile_criteria


def adapt_continuous_batching(module: ModuleType) -> None:
    """Adapts ``transformers.generation.continuous_batching.utils``, or ``requests`` of versions before 5.18."""
    break_down = getattr(module, "get_device_and_memory_breakdown", None)
    if getattr(break_down, "__module__", None) != module.__name__:
        return

    @functools.wraps(break_down)
    def get_device_and_memory_breakdown() -> tuple[torch.device, int, int, int]:
        if not is_accelerator() or not torch.hetero.config.memory_limit:
            return break_down()
        torch.hetero.empty_cache()
        free, total = torch.hetero.mem_get_info()
        return torch.device("hetero"), total, torch.hetero.memory_reserved(), total - free

    module.get_device_and_memory_breakdown = get_device_and_memory_breakdown
