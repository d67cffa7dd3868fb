"""torchao multiplies eight-bit integers on hetero as on the CPU.

It asks whether tensors are on the CPU. Elsewhere it prints each tensor to see whether it is a fake one, which reads its
values, and calls a product that is made for CUDA.

Source: ``int_scaled_matmul`` of torchao/kernel/intmm.py, torchao 0.18.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch


def apply(module: ModuleType) -> None:
    """Adapts ``torchao.kernel.intmm``."""
    original = module.int_scaled_matmul
    on_cpu = getattr(module, "_int_scaled_matmul_cpu", None)
    if on_cpu is None:  # another version
        return

    @functools.wraps(original)
    def int_scaled_matmul(a: torch.Tensor, b: torch.Tensor, scales1: torch.Tensor) -> torch.Tensor:
        is_right = scales1.dim() == 2 and scales1.shape[1] == 1 and scales1.shape[0] in (1, a.shape[0])
        if scales1.device.type != "hetero" or not is_right:
            return original(a, b, scales1)
        return on_cpu(a, b, scales1)

    module.int_scaled_matmul = int_scaled_matmul
