"""``flex_attention`` takes tensors on hetero, with gradients.

It checks the device by a list of names. Eager, it is composed of products and a softmax, which any device has.

Source: ``_validate_device`` of torch/nn/attention/flex_attention.py, torch 2.11.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch


def apply(module: ModuleType) -> None:
    """Adapts ``torch.nn.attention.flex_attention``."""
    original = module._validate_device

    @functools.wraps(original)
    def _validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "hetero":
            original(query, key, value)

    module._validate_device = _validate_device
