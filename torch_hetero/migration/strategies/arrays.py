"""numpy: functions of arrays. Their classes are in torch_hetero/migration/arrays.py, with the methods and ufuncs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_hetero.migration import arrays
from torch_hetero.migration.arrays import (
    ArrayStrategy,
    Examples,
    ask_numpy,
    given,
    placeholder,
    random_array,
    torch_dtype,
)
from torch_hetero.migration.spec import NUMPY_DTYPES, Spec
from torch_hetero.migration.strategy import Call, Mapped, Strategy, Unsupported, register

# New arrays.


class Conversion(ArrayStrategy):
    """An array of an array, an image or a tensor."""

    data = ("a",)
    kinds = ("array", "image", "tensor")

    def refuses(self, call: Call) -> str | None:
        array = self.array(call)
        dtype = array.dtype if call["dtype"] is None else torch_dtype(ask_numpy(np.dtype, call["dtype"]))
        if array.dtype.is_complex and not dtype.is_complex:
            return "complex arrays stay on the CPU"
        if call.arguments.get("copy") is False and (dtype != array.dtype or array.kind == "image"):
            return "copy=False is given, and numpy needs a copy"
        if call.arguments.get("ndmin", 0) > len(array.shape):
            return "ndmin= is given"
        if call.arguments.get("order") not in (None, "K", "C", "A"):
            return f"order={call['order']!r} is given"
        return given(call, like=None, **{"device": None} if "device" in call.arguments else {})

    def map(self, call: Call) -> Mapped:
        array = self.array(call)
        dtype = array.dtype if call["dtype"] is None else torch_dtype(np.dtype(call["dtype"]))
        return Mapped(Spec("array", array.shape, dtype), dtype)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].to(static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            dtype = [None, np.float32, np.uint8, "float64", np.int16][random.integers(5)]
            array: Any = np.abs(random_array(random, shape=(9, 8, 3)) // 2)
            kind = random.integers(3)
            if kind == 1:
                array = torch.from_numpy(array)
            elif kind == 2 and (image := random_image(random)) is not None:
                array = image
            yield (array,), {} if dtype is None else {"dtype": dtype}


def random_image(random: np.random.Generator) -> Any:
    """Returns a PIL image of noise; None without PIL."""
    try:
        from PIL import Image
    except ImportError:
        return None
    shape = (9, 8, 3) if random.random() < 0.5 else (9, 8)
    return Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8))


@register
class AsArray(Conversion):
    target = "numpy.asarray"
    parameters = "a, dtype=None, order=None, *, device=None, copy=None, like=None"


@register
class Array(Conversion):
    target = "numpy.array"
    parameters = 'object, dtype=None, *, copy=True, order="K", subok=False, ndmin=0, like=None'
    data = ("object",)

    def refuses(self, call: Call) -> str | None:
        return super().refuses(call) or (None if call["copy"] is True else "copy= is given")


@register
class AsContiguousArray(Conversion):
    target = "numpy.ascontiguousarray"
    parameters = "a, dtype=None, *, like=None"

    def refuses(self, call: Call) -> str | None:
        return super().refuses(call) or ("it is an array of one element" if self.array(call).shape == () else None)


# Several arrays.


class Joined(Strategy):
    """One array or tensor of several: inputs of one spec come as [batch, number, ...], which a batch may already be."""

    stacks = True
    new: bool  # whether they get a dimension of their own
    kinds: tuple[str, ...]
    result: str
    list: str
    dimension: str

    def supports(self, call: Call) -> str | None:
        entries = call[self.list]
        if not isinstance(entries, (list, tuple)) or any(not isinstance(entry, Spec) for entry in entries):
            return f"{self.list} is no list of {self.result}s"
        if any(entry.kind not in self.kinds for entry in entries):
            return f"not all entries are {self.result}s"
        if len(entries) > 1 and any(entry.dtype != entries[0].dtype for entry in entries[1:]):
            return "entries have several dtypes"
        if "casting" in call.arguments and call["casting"] != "same_kind":
            return "casting= is given"
        return call.given(*[name for name in ("out", "dtype") if name in call.arguments])

    def map(self, call: Call) -> Mapped:
        entries, axis = call[self.list], call[self.dimension]
        if not isinstance(axis, int):
            raise Unsupported(f"{self.dimension}={axis!r} is given")
        examples = [placeholder(entry) for entry in entries]
        rank = len(entries[0].shape) + self.new
        if not -rank <= axis < rank or any(len(entry.shape) != len(entries[0].shape) for entry in entries):
            raise Unsupported("the sizes do not fit")
        axis %= rank
        if self.new:
            shape = (*entries[0].shape[:axis], len(entries), *entries[0].shape[axis:])
        else:
            shape = list(entries[0].shape)
            shape[axis] = sum(entry.shape[axis] for entry in entries)
        skip = None if self.new else axis
        if any(one != other for entry in examples for at, (one, other) in
               enumerate(zip(entry.shape, entries[0].shape, strict=True)) if at != skip):  # fmt: skip
            raise Unsupported("the sizes do not fit")
        equal = all(entry == entries[0] for entry in entries)
        return Mapped(Spec(self.result, tuple(shape), entries[0].dtype), (axis, equal))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        axis, equal = static
        if not equal:
            return torch.cat(list(inputs), axis + 1) if not self.new else torch.stack(list(inputs), axis + 1)
        joined = inputs[0].movedim(1, axis + 1)
        return joined if self.new else joined.flatten(axis + 1, axis + 2)

    def entry(self, array: np.ndarray) -> Any:
        """Returns an array as what the function takes."""
        return array

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            shape = [(3, 4), (5,), (2, 3, 4)][random.integers(3)]
            dtype = [np.uint8, np.float32, np.int64][random.integers(3)]
            axis = int(random.integers(-len(shape), len(shape))) if random.random() < 0.6 else None
            entries = []
            for _ in range(random.integers(1, 5)):
                sizes = list(shape)
                if not self.new and random.random() < 0.3:
                    sizes[axis or 0] += 1
                entries.append(self.entry(random.integers(0, 100, sizes).astype(dtype)))
            entries = tuple(entries) if random.random() < 0.3 else entries
            yield (entries,) if axis is None else (entries, axis), {}


class JoinedArrays(Joined):
    library = "numpy"
    versions = ("2.",)
    data = ("arrays",)
    kinds = ("array", "image")
    result = "array"
    list = "arrays"
    dimension = "axis"


@register
class Stack(JoinedArrays):
    target = "numpy.stack"
    parameters = 'arrays, axis=0, out=None, *, dtype=None, casting="same_kind"'
    new = True


@register
class Concatenate(JoinedArrays):
    target = "numpy.concatenate"
    parameters = 'arrays, /, axis=0, out=None, *, dtype=None, casting="same_kind"'
    new = False


# The same elements in another order.


@register
class Transpose(arrays.Transpose):
    target = "numpy.transpose"
    parameters = "a, axes=None"
    data = ("a",)

    def permuted(self, call: Call, array: np.ndarray) -> np.ndarray:
        return array.transpose(call["axes"])

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random)
            axes = tuple(map(int, random.permutation(array.ndim)))
            yield [(array,), (array, axes)][random.integers(2)], {}


@register
class Swapaxes(arrays.Swapaxes):
    target = "numpy.swapaxes"
    parameters = "a, axis1, axis2"
    data = ("a",)


@register
class Moveaxis(arrays.Permutation):
    target = "numpy.moveaxis"
    parameters = "a, source, destination"
    data = ("a",)

    def permuted(self, call: Call, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, call["source"], call["destination"])

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random, shape=(3, 5, 6))
            yield (array, *[(-1, 0), (0, -1), ([0, 1], [1, 2])][random.integers(3)]), {}


@register
class Flip(ArrayStrategy):
    target = "numpy.flip"
    parameters = "m, axis=None"
    data = ("m",)

    def axes(self, call: Call) -> Any:
        """Returns the axes to flip; None for all."""
        return call["axis"]

    def map(self, call: Call) -> Mapped:
        array, axis = self.array(call), self.axes(call)
        rank = len(array.shape)
        ask_numpy(np.flip, placeholder(array), axis)
        axes = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        return Mapped(Spec("array", array.shape, array.dtype), tuple(int(entry) % rank + 1 for entry in axes))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].flip(static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random)
            yield (array, [None, 0, -1, tuple(range(array.ndim))][random.integers(4)]), {}


@register
class FlipLeftRight(Flip):
    target = "numpy.fliplr"
    parameters = "m"

    def axes(self, call: Call) -> Any:
        return 1

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (random_array(random, shape=[(9, 8, 3), (12, 7)][random.integers(2)]),), {}


@register
class FlipUpDown(FlipLeftRight):
    target = "numpy.flipud"

    def axes(self, call: Call) -> Any:
        return 0


@register
class Rotate90(ArrayStrategy):
    target = "numpy.rot90"
    parameters = "m, k=1, axes=(0, 1)"
    data = ("m",)

    def map(self, call: Call) -> Mapped:
        array = self.array(call)
        view = ask_numpy(np.rot90, placeholder(array), call["k"], tuple(call["axes"]))
        axes = tuple(int(axis) % len(array.shape) + 1 for axis in call["axes"])
        return Mapped(arrays.spec_like(view), (int(call["k"]) % 4, axes))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.rot90(inputs[0], *static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random, shape=(9, 8, 3))
            yield (array, int(random.integers(-4, 5))), {"axes": [(0, 1), (1, 0), (-1, 0)][random.integers(3)]}


# Another shape.


@register
class Reshape(arrays.Reshape):
    target = "numpy.reshape"
    parameters = 'a, /, shape, order="C", *, copy=None'
    data = ("a",)

    def shape(self, call: Call, array: Spec) -> Sequence[int]:
        return arrays.reshaped(array.shape, call["shape"])

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random)
            yield (array, [-1, (-1, array.shape[-1]), (1, -1)][random.integers(3)]), {}


@register
class Ravel(arrays.Ravel):
    target = "numpy.ravel"
    parameters = 'a, order="C"'
    data = ("a",)


@register
class Squeeze(arrays.Squeeze):
    target = "numpy.squeeze"
    parameters = "a, axis=None"
    data = ("a",)


@register
class ExpandDims(arrays.Shape):
    target = "numpy.expand_dims"
    parameters = "a, axis"
    data = ("a",)

    def shape(self, call: Call, array: Spec) -> Sequence[int]:
        return np.expand_dims(placeholder(array), call["axis"]).shape

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (random_array(random), [0, -1, 1, (0, 2)][random.integers(4)]), {}


def rows(batch: torch.Tensor, dimension: int, index: np.ndarray) -> torch.Tensor:
    """Returns elements along a dimension: a piece of them, or one again and again, if it can be."""
    count = len(index)
    if count == 0:
        return batch.narrow(dimension, 0, 0)
    step = int(index[1] - index[0]) if count > 1 else 0
    if np.any(np.diff(index) != step) or abs(step) > 1:
        return batch.index_select(dimension, torch.from_numpy(np.ascontiguousarray(index)).to(batch.device))
    piece = batch.narrow(dimension, int(index.min()), count if step else 1)
    if step == 0:
        return piece.expand(*batch.shape[:dimension], count, *batch.shape[dimension + 1 :])
    return piece.flip(dimension) if step < 0 else piece


@register
class Pad(ArrayStrategy):
    target = "numpy.pad"
    parameters = 'array, pad_width, mode="constant", **keywords'
    data = ("array",)
    modes = ("constant", "edge", "reflect", "symmetric", "wrap")

    def refuses(self, call: Call) -> str | None:
        if call["mode"] not in self.modes:
            return f"mode {call['mode']!r} stays on the CPU"
        keywords = dict(call["keywords"])
        value = keywords.pop("constant_values", 0) if call["mode"] == "constant" else 0
        if not isinstance(value, (bool, int, float, np.bool_, np.number)):
            return "constant_values is no number"
        if isinstance(call["pad_width"], dict):
            return "pad_width is a dict"
        if 0 in self.array(call).shape:
            return "the array is empty"
        return f"{next(iter(keywords))}= is given" if keywords else None

    def map(self, call: Call) -> Mapped:
        array = self.array(call)
        widths = ask_numpy(np.broadcast_to, np.asarray(call["pad_width"]), (len(array.shape), 2))
        if widths.dtype.kind != "i" or widths.min(initial=0) < 0:
            raise Unsupported("pad_width is no list of sizes")
        pairs = tuple((int(before), int(after)) for before, after in widths)
        value = ask_numpy(np.full, (), call["keywords"].get("constant_values", 0), NUMPY_DTYPES[array.dtype]).item()
        shape = tuple(size + before + after for size, (before, after) in zip(array.shape, pairs, strict=True))
        return Mapped(Spec("array", shape, array.dtype), (call["mode"], pairs, value))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        mode, pairs, value = static
        (result,) = inputs
        if mode == "constant":
            return torch.nn.functional.pad(result, [width for pair in reversed(pairs) for width in pair], value=value)
        for dimension, pair in enumerate(pairs, 1):
            if pair != (0, 0):
                index = np.pad(np.arange(result.shape[dimension]), pair, mode)
                before, after = (
                    rows(result, dimension, part) for part in (index[: pair[0]], index[len(index) - pair[1] :])
                )
                result = torch.cat([before, result, after], dimension)
        return result

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random, shape=[(9, 8, 3), (12, 7)][random.integers(2)])
            width = [2, (1, 3), ((2, 1), (0, 3), (0, 0))[: array.ndim], 12][random.integers(4)]
            mode = self.modes[random.integers(len(self.modes))]
            yield (array, width, mode), {"constant_values": 7} if mode == "constant" and random.random() < 0.5 else {}


# Elements that are compared, and summed.


@register
class Clip(arrays.Clip):
    target = "numpy.clip"
    parameters = "a, a_min=None, a_max=None, out=None, *, min=None, max=None, **keywords"
    data = ("a",)

    def bounds(self, call: Call) -> tuple[Any, Any]:
        pairs = (call["a_min"], call["min"]), (call["a_max"], call["max"])
        return tuple(first if first is not None else second for first, second in pairs)


@register
class Mean(arrays.Mean):
    target = "numpy.mean"
    parameters = "a, axis=None, dtype=None, out=None, keepdims=False, *, where=True"
    data = ("a",)


@register
class Std(arrays.Std):
    target = "numpy.std"
    parameters = "a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None"
    data = ("a",)


@register
class Sum(arrays.Sum):
    target = "numpy.sum"
    parameters = "a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True"
    data = ("a",)


@register
class Max(arrays.Max):
    target = "numpy.max"
    parameters = "a, axis=None, out=None, keepdims=False, initial=None, where=True"
    data = ("a",)


@register
class Min(arrays.Min):
    target = "numpy.min"
    parameters = "a, axis=None, out=None, keepdims=False, initial=None, where=True"
    data = ("a",)
