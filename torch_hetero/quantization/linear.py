"""``QuantizedLinear``: a linear layer whose weight has 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_hetero import _C  # noqa: F401  registers the operators

__all__ = ["QuantizedLinear"]


class QuantizedLinear(torch.nn.Module):
    """``torch.nn.Linear`` with a weight in 8 or 4 bits, for inference.

    A weight is ``scale * (q - zero)``, with a scale for each group of neighbours in a row. It stays packed; products
    read it as it is. Layers are made by `from_linear`, `torch.hetero.quantize` or a function of `checkpoint`.

    Attributes:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        bits: 8 or 4.
        group: How many columns share a scale; 0 for whole rows.
        activation_bits: The bits that products take of the input: 16, or 8.
        packed: The numbers, uint8, as ``backend/cpu/quantized/weight.h`` packs them.
        scales: Of the groups: ``[panels, groups, 16]``, panels being 16 rows.
        zeros: The same, uint8; None where the weight is symmetric.
        bias: ``[out_features]``, or None.
        order: The input's columns in the order of the weight's, for checkpoints whose columns are sorted; else None.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bias: torch.Tensor | None
    order: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        packed: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        bits: int,
        group: int,
        activation_bits: int = 16,
        order: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.bits, self.group, self.activation_bits = bits, group, activation_bits
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros if zeros is not None and zeros.numel() > 0 else None)
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.register_buffer("order", order if order is not None and order.numel() > 0 else None)

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, *, bits: int = 8, group: int = 32, symmetric: bool = True, activation_bits: int = 16
    ) -> QuantizedLinear:
        """The layer with a quantized weight, on its device. See `torch.hetero.quantize`."""
        weight = linear.weight.detach()
        packed, scales, zeros = torch.ops.hetero.quantize_weight(weight.cpu(), bits, group, symmetric)
        made = cls(linear.in_features, linear.out_features, packed, scales, zeros, linear.bias, bits=bits, group=group,
                   activation_bits=activation_bits)
        made.train(linear.training)
        return made.to(weight.device)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """``input @ weight.T + bias``, in the input's dtype. ``input``: ``[..., in_features]``."""
        if self.training and input.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a quantized layer cannot be trained: call model.eval(), or use torch.no_grad()")
        if self.order is not None:
            input = input.index_select(-1, self.order)  # noqa: A001
        bias = self.bias
        if bias is not None and bias.dtype != input.dtype:
            bias = bias.to(input.dtype)
        return torch.ops.hetero.quantized_linear(input, self.packed, self.scales, self.zeros, bias, self.bits, self.group,
                                                 self.out_features, self.activation_bits)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weight as numbers, ``[out_features, in_features]``, with the columns in the input's order."""
        weight = torch.ops.hetero.dequantize_weight(self.packed, self.scales, self.zeros, self.bits, self.group,
                                                    self.out_features, self.in_features, dtype=dtype)
        return weight if self.order is None else weight.index_select(1, self.order.argsort())

    def extra_repr(self) -> str:
        """What the layer is, as ``print(model)`` shows it."""
        return (f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
                f"bits={self.bits}, group={self.group or 'row'}, symmetric={self.zeros is None}")

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> QuantizedLinear:
        """Moves the layer. Another dtype is for the bias: scales keep theirs, which others could not hold."""
        scales = self.scales
        super()._apply(fn, recurse)
        if self.scales.dtype != scales.dtype:
            self.scales = scales.to(self.scales.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Takes scales of the dtype that the file has: those of checkpoints are float16."""
        scales = state_dict.get(prefix + "scales")
        if scales is not None and scales.shape == self.scales.shape and scales.is_floating_point():
            self.scales = self.scales.to(scales.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)
