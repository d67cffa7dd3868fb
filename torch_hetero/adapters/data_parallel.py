"""``nn.DataParallel``: a model on the CPU stays there, and one on hetero gets its inputs on hetero.

It moves models to the accelerator that torch has, if any, and scatters inputs by streams of CUDA. The device is one, so
there is nothing to divide.

Source: torch/nn/parallel/data_parallel.py and _functions.py, torch 2.11.
"""

from __future__ import annotations

import functools
from itertools import chain
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel._functions import Scatter


def _is_on_hetero(module: torch.nn.Module) -> bool:
    return any(tensor.device.type == "hetero" for tensor in chain(module.parameters(), module.buffers()))


def apply(module: ModuleType) -> None:
    """Adapts ``torch.nn.parallel.data_parallel``."""
    make = module.DataParallel.__init__
    scatter = Scatter.apply

    @functools.wraps(make)
    def __init__(self: Any, model: torch.nn.Module, *arguments: Any, **named: Any) -> None:
        if module._get_available_device_type() != "hetero" or _is_on_hetero(model):
            make(self, model, *arguments, **named)
            return
        # As on a machine without accelerators.
        torch.nn.Module.__init__(self)
        self.module = model
        self.device_ids = []

    def apply_scatter(devices: Any, chunk_sizes: Any, dim: int, tensor: torch.Tensor) -> Any:
        if module._get_available_device_type() == "hetero" and len(devices) == 1:
            return (tensor.to("hetero"),)
        return scatter(devices, chunk_sizes, dim, tensor)

    module.DataParallel.__init__ = __init__
    Scatter.apply = apply_scatter
