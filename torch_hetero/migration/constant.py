"""Tensors among the settings of a call: windows, filter banks, kernels of filters."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Constant"]


class Constant:
    """A CPU tensor as a static setting: equal to another by its elements.

    `of` makes one for each tensor, while that is not written to. It has copies on devices, so that a buffer of a module
    is hashed and uploaded once.
    """

    __slots__ = ("copies", "digest", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        elements = self.tensor.reshape(-1).view(torch.uint8).numpy()
        self.digest = hashlib.blake2b(elements, digest_size=16).digest(), tuple(tensor.shape), tensor.dtype
        self.copies: dict[torch.device, torch.Tensor] = {}

    @staticmethod
    def of(tensor: torch.Tensor) -> Constant:
        """Returns the constant with a CPU tensor's elements of now."""
        if tensor.is_inference():
            return Constant(tensor)  # writes to it are not counted
        known = _known.get(tensor)
        if known is None or known[0] != tensor._version:
            known = _known[tensor] = (tensor._version, Constant(tensor))
        return known[1]

    def on(self, device: torch.device) -> torch.Tensor:
        """Returns it on a device. It must not be written to."""
        if device.type == "cpu":
            return self.tensor
        copy = self.copies.get(device)
        if copy is None:
            copy = self.copies[device] = self.tensor.to(device)
        return copy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self.tensor,)


_known = WeakTensorKeyDictionary()
