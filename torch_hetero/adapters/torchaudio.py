"""torchaudio's overdrive runs by its kernel of the CPU on hetero too, where it was a loop over samples in Python.

It compares the device with ``"cpu"`` to choose between the two.

Source: ``overdrive`` of torchaudio/functional/filtering.py, torchaudio 2.11.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch


def apply(module: ModuleType) -> None:
    """Adapts ``torchaudio.functional.filtering``."""
    loop = module._overdrive_core_loop_generic
    kernel = module._overdrive_core_loop_cpu

    @functools.wraps(loop)
    def overdrive_core_loop(waveform: torch.Tensor, *others: Any) -> None:
        (kernel if waveform.device.type == "hetero" else loop)(waveform, *others)

    module._overdrive_core_loop_generic = overdrive_core_loop
