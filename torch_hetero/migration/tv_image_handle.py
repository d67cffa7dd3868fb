"""The handle of a `torchvision.tv_tensors.Image`.

A `TvImageHandle` is both: a `TensorHandle`, and an `Image` for torchvision, whose transforms choose kernels by class.
Operators get the host's image, so that torchvision decides which class their results have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map
from torchvision.tv_tensors import Image

from torch_hetero.migration.holder import Holder, on_host, register_handle
from torch_hetero.migration.recipe import Source, Value
from torch_hetero.migration.spec import spec_of, to_tensor
from torch_hetero.migration.tensor_handle import METADATA, MOVES, TensorHandle

__all__ = ["TvImageHandle"]


class TvImageHandle(TensorHandle, Image):
    """Looks like a `tv_tensors.Image`; see the module's text."""

    def __init__(self, value: Value) -> None:
        pass

    @property  # type: ignore[override]
    def _hetero_holder(self) -> Holder:
        holder = self.__dict__.get("holder")
        if holder is None:  # `tv_tensors.wrap` gave a tensor the class of a handle
            with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
                image = self.as_subclass(Image)
            holder = Holder(Source(spec_of(image), to_tensor(image).clone(memory_format=torch.contiguous_format)))
            holder.keep(image)
            self.__dict__["holder"] = holder
        return holder

    @_hetero_holder.setter
    def _hetero_holder(self, holder: Holder) -> None:
        self.__dict__["holder"] = holder

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, positional: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        first = positional[0] if positional else None
        if type(first) is TvImageHandle and first._hetero_holder.data is None:
            if function in METADATA:
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*positional, **keywords)
            if function in MOVES:
                moved = first._hetero_move(MOVES[function], positional[1:], keywords)
                if moved is not None:
                    return moved.as_subclass(Image)
        return function(*tree_map(on_host, tuple(positional)), **tree_map(on_host, keywords))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, positional: Any = (), keywords: Any = None) -> Any:
        return function(*tree_map(on_host, positional), **tree_map(on_host, keywords or {}))


register_handle("tv_image", TvImageHandle)
