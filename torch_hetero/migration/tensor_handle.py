"""The handle of a CPU tensor.

A `TensorHandle` is a tensor without storage. Functions with a strategy are recorded. ``to`` another device hands over what
the device has or will have, without a copy to the host. Everything else gets the host's tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from torch_hetero.migration import session
from torch_hetero.migration.holder import Holder, record_call, register_handle
from torch_hetero.migration.recipe import Value

__all__ = ["TensorHandle"]

Tensor = torch.Tensor

# Questions that a tensor without storage can answer.
METADATA = {
    Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.ndim.__get__, Tensor.layout.__get__,
    Tensor.requires_grad.__get__, Tensor.is_leaf.__get__, Tensor.grad.__get__, Tensor.grad_fn.__get__, Tensor.names.__get__,
    Tensor.is_sparse.__get__, Tensor.is_cuda.__get__, Tensor.is_quantized.__get__, Tensor.is_meta.__get__,
    Tensor.itemsize.__get__, Tensor.nbytes.__get__, Tensor.__len__, Tensor.dim, Tensor.size, Tensor.numel, Tensor.nelement,
    Tensor.stride, Tensor.is_contiguous, Tensor.element_size, Tensor.is_floating_point, Tensor.is_complex,
    Tensor.storage_offset, Tensor.__hash__, Tensor.is_shared, Tensor.is_pinned,
}  # fmt: skip

# Methods that move a tensor to a device, and the device if the call does not name one.
MOVES: dict[Any, str | None] = {Tensor.to: None, Tensor.cuda: "cuda"}


class TensorHandle(torch.Tensor):
    """Looks like a CPU tensor; see the module's text."""

    @staticmethod
    def __new__(cls, value: Value) -> TensorHandle:
        handle = torch.Tensor._make_wrapper_subclass(cls, value.spec.shape, dtype=value.spec.dtype, device="cpu")
        handle._hetero_holder = Holder(value)
        return handle

    def __init__(self, value: Value) -> None:
        pass

    def _hetero_host(self) -> torch.Tensor:
        return self._hetero_holder.host()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, positional: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        first = positional[0] if positional else None
        if function in METADATA and type(first) is TensorHandle and first._hetero_holder.data is None:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*positional, **keywords)
        if function is Tensor.pin_memory and type(first) is TensorHandle and first._hetero_holder.data is None:
            return first  # there is nothing to pin: the device computes it
        if function in MOVES and type(first) is TensorHandle:
            moved = first._hetero_move(MOVES[function], positional[1:], keywords)
            if moved is not None:
                return moved
        target = target_of(function)
        result = record_call(target, function, positional, keywords) if target else NotImplemented
        if result is not NotImplemented:
            return result
        with torch._C.DisableTorchFunctionSubclass():
            return function(*tree_map(on_host_tensor, positional), **tree_map(on_host_tensor, keywords))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, positional: Any = (), keywords: Any = None) -> Any:
        return function(*tree_map(on_host_tensor, positional), **tree_map(on_host_tensor, keywords or {}))

    def _hetero_move(self, device: str | None, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Returns the tensor on another device; None if the call is no move away from the CPU."""
        with torch._C.DisableTorchFunctionSubclass():
            if device is None:
                device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*positional, **keywords)
            else:
                device, dtype, memory_format = torch.device(device), None, None
        holder = self._hetero_holder
        if device is None or device.type == "cpu" or holder.data is not None or not session.on_device_here():
            return None
        tensor = session.on_device(holder.value)
        return (
            tensor.to(device, dtype) if memory_format is None else tensor.to(device, dtype, memory_format=memory_format)
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        from torch_hetero.migration.shipping import reduce_handle

        return reduce_handle(self, protocol)


def on_host_tensor(argument: Any) -> Any:
    """Returns an argument; the host's tensor of a handle."""
    return argument._hetero_host() if type(argument) is TensorHandle else argument


def target_of(function: Callable[..., Any]) -> str | None:
    """Returns the name under which a strategy for a function or method of torch would be known."""
    name = getattr(function, "__name__", "")
    if getattr(torch.Tensor, name, None) is function:
        return f"torch.Tensor.{name}"
    if getattr(torch, name, None) is function:
        return f"torch.{name}"
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else None


register_handle("tensor", TensorHandle)
