"""Runs a graph of ATen operators with every tensor on hetero, whatever device it was traced for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

__all__ = ["HETERO", "GraphOnHetero", "on_hetero"]

HETERO = torch.device("hetero", 0)


def on_hetero(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on hetero, without its history."""
    return tensor.detach().to(HETERO)


def _hetero_for(device: torch.device) -> torch.device:
    return HETERO if device.type in ("cpu", "cuda") else device


_native_batch_norm = torch.ops.aten.native_batch_norm.default


def _with_given_statistics(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _native_batch_norm(x, weight, bias, mean, variance, False, momentum, eps)


def _without_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> tuple[Any, ...]:
    return _native_batch_norm(x, weight, bias, None, None, training, momentum, eps)


def _with_new_statistics(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> tuple[Any, ...]:
    mean, variance = mean.clone(), variance.clone()
    return (*_native_batch_norm(x, weight, bias, mean, variance, *rest), mean, variance)


# What AOTAutograd makes of operators that the device knows better by the name that they have without it.
_AS_WITHOUT_AOT = {
    torch.ops.aten._native_batch_norm_legit.default: _native_batch_norm,
    torch.ops.aten._native_batch_norm_legit.no_stats: _without_statistics,
    torch.ops.aten._native_batch_norm_legit_functional.default: _with_new_statistics,
    torch.ops.aten._native_batch_norm_legit_no_training.default: _with_given_statistics,
}


class GraphOnHetero(fx.Interpreter):
    """Runs a graph with every tensor on hetero, whatever device it was traced for.

    `weights` stand for the graph's attributes of these names.
    """

    def __init__(self, module: fx.GraphModule, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._weights = weights or {}

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls an operator of ATen."""
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None  # of the device, too
        target = _AS_WITHOUT_AOT.get(target, target)
        args, kwargs = torch.utils._pytree.tree_map_only(torch.device, _hetero_for, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a module, save for what torch.export checks of the inputs: whoever captures knows them."""
        return None if target == "_guards_fn" else super().call_module(target, args, kwargs)

    def get_attr(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns a weight or a constant, on hetero; a graph inside this one runs as this one does."""
        if target in self._weights:
            return self._weights[target]
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, fx.GraphModule):
            return lambda *inputs: GraphOnHetero(value).run(*inputs, enable_io_processing=False)
        return value.to(HETERO) if isinstance(value, torch.Tensor) else value
