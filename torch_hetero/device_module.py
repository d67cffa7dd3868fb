"""The module behind ``torch.hetero``: what ``torch.cuda`` is for CUDA, plus what only this device has.

There is one device, ``hetero:0``; it stands for the CPU and, where there is one, the accelerator beside it. Which of
them runs an operator is decided when recorded operators are planned, so nothing here asks the user to choose.

Every ``device`` argument takes ``None``, an index, a string or a ``torch.device``, and means ``hetero:0`` in all
cases; another index raises ``RuntimeError``, another device type ``ValueError``.
"""

from torch_hetero import _C  # noqa: F401
from torch_hetero.device.identity import (  # noqa: F401
    _exchange_device,
    _is_in_bad_fork,
    _lazy_init,
    _maybe_exchange_device,
    current_device,
    device,
    device_count,
    device_of,
    get_device_name,
    init,
    is_available,
    is_initialized,
    set_device,
)
from torch_hetero.device.inductor import (  # noqa: F401
    CppWrapperCodegen,
    PythonWrapperCodegen,
    Scheduling,
    WrapperFxCodegen,
)
from torch_hetero.device.memory import (
    accelerator_memory_stats,
    empty_cache,
    get_memory_budget,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_budget,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_memory_budget,
)
from torch_hetero.device.placement import place, placement, set_placement_rules
from torch_hetero.device.properties import (
    DeviceProperties,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_properties,
    is_bf16_supported,
)
from torch_hetero.device.rng import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_hetero.device.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    flush,
    set_stream,
    stream,
    synchronize,
)
from torch_hetero.profiles.simulation import Prediction, simulate, use_profile
from torch_hetero.program.calling import CompiledModel, load
from torch_hetero.program.compiled_graph import compiled_graphs
from torch_hetero.program.making import compile_model as compile  # noqa: A004
from torch_hetero.program.server import Server
from torch_hetero.quantization.quantize import quantize
from torch_hetero.report.log import programs, report, trace
from torch_hetero.settings.config import config
from torch_hetero.settings.explain import Report, explain, reset_counters

__all__ = [
    "CompiledModel", "DeviceProperties", "Event", "Prediction", "Report", "Server", "Stream",
    "StreamContext", "accelerator_memory_stats", "compile",
    "compiled_graphs", "config", "current_device", "current_stream", "default_generators", "default_stream",
    "device", "device_count", "device_of", "empty_cache", "explain", "flush", "get_amp_supported_dtype",
    "get_device_capability", "get_device_name", "get_device_properties", "get_memory_budget", "get_rng_state",
    "get_rng_state_all", "init", "initial_seed", "is_available", "is_bf16_supported", "is_initialized", "load",
    "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_budget", "memory_reserved", "memory_stats", "memory_summary", "place", "placement",
    "programs", "quantize", "report", "reset_accumulated_memory_stats", "reset_counters", "reset_peak_memory_stats", "seed",
    "seed_all", "set_device", "set_memory_budget", "set_placement_rules", "set_rng_state", "set_rng_state_all",
    "set_stream", "simulate", "stream", "synchronize", "trace", "use_profile",
]
