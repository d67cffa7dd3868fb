"""torch: tensors of arrays, and batches of tensors, as collate functions make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.arrays import random_array
from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategies.arrays import Joined
from torch_hetero.migration.strategy import Call, Mapped, Strategy, register

Examples = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]


class JoinedTensors(Joined):
    library = "torch"
    versions = ("2.11.",)
    data = ("tensors",)
    kinds = ("tensor",)
    result = "tensor"
    list = "tensors"
    dimension = "dim"

    def entry(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array)


@register
class Stack(JoinedTensors):
    target = "torch.stack"
    parameters = "tensors, dim=0, *, out=None"
    new = True


@register
class Cat(JoinedTensors):
    target = "torch.cat"
    parameters = "tensors, dim=0, *, out=None"
    new = False


class ToTensor(Strategy):
    """A tensor of an array."""

    library = "torch"
    versions = ("2.11.",)
    data = ("data",)
    kinds: tuple[str, ...] = ("array",)

    def supports(self, call: Call) -> str | None:
        source = call[self.data[0]]
        if not isinstance(source, Spec):
            return f"{self.data[0]} is a list"
        if source.kind not in self.kinds:
            return f"{self.data[0]} is a PIL image" if source.kind == "image" else f"{self.data[0]} is a tensor"
        device = call.arguments.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return f"device={str(device)!r} is given"
        for name in ("requires_grad", "pin_memory"):
            if call.arguments.get(name):
                return f"{name}= is given"
        dtype = call.arguments.get("dtype")
        return (
            "complex data stays on the CPU" if source.dtype.is_complex and dtype not in (None, source.dtype) else None
        )

    def map(self, call: Call) -> Mapped:
        source = call[self.data[0]]
        dtype = call.arguments.get("dtype") or source.dtype
        return Mapped(Spec("tensor", source.shape, dtype), dtype)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].to(static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random, (np.uint8, np.int32, np.float32, np.float64, np.bool_), (9, 8))
            dtype = [None, torch.float32, torch.int64, torch.float64][random.integers(4)]
            yield (array,), {} if dtype is None or "dtype" not in self.parameters else {"dtype": dtype}


@register
class FromNumpy(ToTensor):
    target = "torch.from_numpy"
    parameters = "ndarray"
    data = ("ndarray",)


@register
class NewTensor(ToTensor):
    target = "torch.tensor"
    parameters = "data, *, dtype=None, device=None, requires_grad=False, pin_memory=False"


@register
class AsTensor(ToTensor):
    target = "torch.as_tensor"
    parameters = "data, dtype=None, device=None"
    kinds = ("array", "tensor")


@register
class Pad(Strategy):
    target = "torch.nn.functional.pad"
    parameters = 'input, pad, mode="constant", value=None'
    data = ("input",)
    library = "torch"
    versions = ("2.11.",)

    def supports(self, call: Call) -> str | None:
        source, pad, mode = call["input"], call["pad"], call["mode"]
        if source.kind != "tensor":
            return "input is no tensor"
        if mode not in ("constant", "reflect", "replicate", "circular"):
            return f"mode {mode!r} stays on the CPU"
        if any(not isinstance(width, int) for width in pad) or len(pad) % 2 or len(pad) > 2 * len(source.shape):
            return "pad is no list of pairs"
        if any(width < 0 for width in pad):
            return "pad has negative sizes"
        if not isinstance(call["value"], (bool, int, float, type(None))):
            return "value is no number"
        if mode != "constant":
            if not source.dtype.is_floating_point:
                return "integers are padded with a value only"
            if len(source.shape) - len(pad) // 2 not in (1, 2) or len(pad) > 6:
                return "the input has more dimensions than are padded, batch and channels"
            sizes = list(zip(reversed(source.shape), pad[::2], pad[1::2], strict=False))
            if any(max(before, after) > size - (mode == "reflect") for size, before, after in sizes):
                return "the padding is larger than the input"
        return None

    def map(self, call: Call) -> Mapped:
        source, pad = call["input"], tuple(call["pad"])
        shape = list(source.shape)
        for at in range(len(pad) // 2):
            shape[-1 - at] += pad[2 * at] + pad[2 * at + 1]
        return Mapped(Spec("tensor", tuple(shape), source.dtype), (pad, call["mode"], call["value"]))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        pad, mode, value = static
        (source,) = inputs
        if mode == "constant":
            return torch.nn.functional.pad(source, pad, value=value)
        # [batch, channels, padded ...]: all dimensions before those that are padded are one.
        first = source.dim() - len(pad) // 2
        packed = source.flatten(0, first - 1).unsqueeze(0)
        return torch.nn.functional.pad(packed, pad, mode).squeeze(0).unflatten(0, source.shape[:first])

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = torch.from_numpy(random_array(random, (np.float32, np.uint8, np.int64), (3, 5, 6)))
            mode = ["constant", "reflect", "replicate", "circular"][random.integers(4)]
            pad = tuple(map(int, random.integers(0, 4, 2 * random.integers(1, 3))))
            if mode == "constant":
                yield (array, pad), {"value": 3} if random.random() < 0.5 else {}
            else:
                yield (array.float(), pad), {"mode": mode}


class Like(Strategy):
    """A tensor of one value, such as a mask for all tokens of a sequence."""

    library = "torch"
    versions = ("2.11.",)
    data = ("input",)
    number = 0

    def supports(self, call: Call) -> str | None:
        if call["input"].kind != "tensor":
            return "input is no tensor"
        if call["requires_grad"]:
            return "requires_grad= is given"
        if not isinstance(call.arguments.get("fill_value", 0), (bool, int, float)):
            return "fill_value is no number"
        return call.given("layout", "device", "memory_format")

    def map(self, call: Call) -> Mapped:
        dtype = call["dtype"] or call["input"].dtype
        value = call.arguments.get("fill_value", self.number)
        return Mapped(Spec("tensor", call["input"].shape, dtype), (dtype, value))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        dtype, value = static
        return torch.full(inputs[0].shape, value, dtype=dtype, device=inputs[0].device)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            tensor = torch.from_numpy(random_array(random, (np.int64, np.float32), (12, 7)))
            value = () if "fill_value" not in self.parameters else (3,)
            yield (tensor, *value), {} if random.random() < 0.5 else {"dtype": torch.bool}


LIKE = "*, dtype=None, layout=None, device=None, requires_grad=False, memory_format=None"


@register
class ZerosLike(Like):
    target = "torch.zeros_like"
    parameters = f"input, {LIKE}"


@register
class OnesLike(Like):
    target = "torch.ones_like"
    parameters = f"input, {LIKE}"
    number = 1


@register
class FullLike(Like):
    target = "torch.full_like"
    parameters = f"input, fill_value, {LIKE}"
