"""Operations of numpy arrays as strategies: ufuncs ("numpy.add"), and methods ("numpy.ndarray.astype").

Handles of arrays call them when user code computes with a handle: `find("numpy.add")` for ``handle + 1``. Functions
such as ``numpy.pad`` are in strategies/arrays.py, and share the classes here.

Results have numpy's dtypes: numpy itself is asked which loop it would run, and operands are cast to that loop's dtypes.
Integer and IEEE arithmetic has numpy's bits. Tolerances say where it has not. numpy's warnings are not given.

Numbers and arrays of at most 64 elements, such as a mean for each channel, are settings of a sample: calls that differ
in them share a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration.spec import NUMPY_DTYPES, TORCH_DTYPES, Spec
from torch_hetero.migration.strategy import EXACT, Call, Mapped, Strategy, Tolerance, Unsupported, register

__all__ = ["ArrayStrategy", "Examples", "ask_numpy", "placeholder", "torch_dtype"]

Examples = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]
INTEGERS = (np.uint8, np.int8, np.int16, np.int32, np.int64)
FLOATS = (np.float32, np.float64)


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Returns the dtype of elements as tensors."""
    if dtype not in TORCH_DTYPES:
        raise Unsupported(f"arrays of {dtype} stay on the CPU")
    return TORCH_DTYPES[dtype]


def ask_numpy(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Returns what numpy answers. If it raises, the call is left to the original, which raises the same."""
    try:
        return function(*arguments, **keywords)
    except Exception as error:  # AxisError, OverflowError, UFuncTypeError and so on
        raise Unsupported(f"numpy raises {type(error).__name__}: {error}") from None


def placeholder(spec: Spec) -> np.ndarray:
    """Returns an array of a spec's shape and dtype with memory for one element, to ask numpy about views of it."""
    return np.broadcast_to(np.zeros((), NUMPY_DTYPES[spec.dtype]), spec.shape)


def spec_like(view: Any) -> Spec:
    """Returns the spec of an array that numpy answered."""
    if not isinstance(view, np.ndarray):
        raise Unsupported("its result is a number")
    return Spec("array", view.shape, torch_dtype(view.dtype))


def random_array(
    random: np.random.Generator, dtypes: Sequence[Any] = (), shape: Sequence[int] | None = None
) -> np.ndarray:
    """Returns noise of more than 64 elements, with a zero at its end, of one of a few shapes."""
    dtype = np.dtype(dtypes[random.integers(len(dtypes))] if dtypes else (INTEGERS + FLOATS)[random.integers(7)])
    if shape is None:
        shape = [(9, 8, 3), (12, 7), (3, 5, 6), (70,)][random.integers(4)]
    if dtype.kind == "f":
        array = random.normal(0, 3, shape).astype(dtype)
    else:
        low, high = (0, 2) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        array = random.integers(low, high, shape, dtype=np.int64, endpoint=dtype.kind != "b").astype(dtype)
    array[(-1,) * array.ndim] = 0
    return array


class ArrayStrategy(Strategy):
    """A function or method of numpy; its first data parameter is the array."""

    family = "generic"
    library = "numpy"
    versions = ("2.",)
    data = ("self",)
    kinds: ClassVar[tuple[str, ...]] = ("array",)

    def array(self, call: Call) -> Spec:
        """Returns the spec of the call's array."""
        return call[self.data[0]]

    def supports(self, call: Call) -> str | None:
        """Returns a reason for what is no array, and what `refuses` says of arrays."""
        array = self.array(call)
        if not isinstance(array, Spec):
            return f"{self.data[0]} is no array"
        if array.kind not in self.kinds:
            return f"{self.data[0]} is a PIL image" if array.kind == "image" else f"{self.data[0]} is a tensor"
        return self.refuses(call)

    def refuses(self, call: Call) -> str | None:
        """Returns `supports` for a call whose array is one."""
        return None


def given(call: Call, **defaults: Any) -> str | None:
    """Returns a reason for the first argument that is not its default."""
    for name, default in defaults.items():
        if call[name] is not default and not (isinstance(default, str) and call[name] == default):
            return f"{name}= is given"
    return None


# Ufuncs.


class Ufunc(Strategy):
    """A ufunc of one or two operands. Rows of the tables below are its subclasses."""

    family = "generic"
    library = "numpy"
    versions = ("2.",)
    constants = 64
    ufunc: ClassVar[np.ufunc]
    compute: Callable[..., torch.Tensor]
    takes: ClassVar[tuple[Any, ...]]

    def supports(self, call: Call) -> str | None:
        out = call["out"]
        if any(entry is not None for entry in (out if isinstance(out, tuple) else (out,))):
            return "out= is given"
        reason = given(call, where=True, casting="same_kind", order="K", dtype=None, signature=None)
        if reason is not None:
            return reason
        for name in self.data:
            operand = call[name]
            if isinstance(operand, Spec):
                if operand.kind != "array":
                    return f"{name} is a PIL image" if operand.kind == "image" else f"{name} is a tensor"
                if operand.dtype.is_complex:
                    return "complex arrays stay on the CPU"
            elif isinstance(operand, (list, tuple)):
                if any(not isinstance(entry, (bool, int, float, np.number)) for entry in operand):
                    return f"{name} is a list of more than numbers"
            elif isinstance(operand, torch.Tensor):
                return f"{name} is a tensor"
            elif not isinstance(operand, (bool, int, float, np.bool_, np.integer, np.floating, np.ndarray)):
                return f"{name} is of type {type(operand).__name__}"
            elif isinstance(operand, np.ndarray) and operand.dtype not in TORCH_DTYPES:
                return f"arrays of {operand.dtype} stay on the CPU"
        return None

    def map(self, call: Call) -> Mapped:
        operands = [
            np.asarray(entry) if isinstance(entry, (list, tuple)) else entry
            for entry in map(call.__getitem__, self.data)
        ]
        *loops, output = ask_numpy(self.ufunc.resolve_dtypes, (*map(loop_type, operands), None))
        settings = []
        for operand, loop in zip(operands, loops, strict=True):
            if not isinstance(operand, Spec):
                setting = ask_numpy(
                    np.asarray, operand, dtype=loop
                )  # Python's numbers become the loop's, or do not fit
                reason = self.refuses_setting(setting, loop, operand is operands[-1])
                if reason is not None:
                    raise Unsupported(reason)
                settings.append(setting.astype({"f": np.float64, "b": np.bool_}.get(loop.kind, np.int64)))
            elif (reason := self.refuses_data(loop, operand is operands[-1])) is not None:
                raise Unsupported(reason)
        shape = ask_numpy(
            np.broadcast_shapes,
            *[operand.shape if isinstance(operand, Spec) else np.shape(operand) for operand in operands],
        )
        if shape == ():
            raise Unsupported("its result is a number")
        is_data = tuple(isinstance(operand, Spec) for operand in operands)
        static = (is_data, tuple(map(torch_dtype, loops)), torch_dtype(output), len(shape))
        return Mapped(Spec("array", shape, torch_dtype(output)), static, tuple(settings))

    def refuses_setting(self, value: np.ndarray, loop: np.dtype, last: bool) -> str | None:
        """Returns a reason not to compute with a constant operand, in the loop's dtype; `last` for a divisor."""
        return None

    def refuses_data(self, loop: np.dtype, last: bool) -> str | None:
        """Returns a reason not to compute with an operand of any values."""
        return None

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        is_data, loops, output, rank = static
        data, settings = iter(inputs), iter(sample)
        operands = []
        for from_data, loop in zip(is_data, loops, strict=True):
            operand = next(data) if from_data else next(settings)
            ones = [1] * (rank + 1 - operand.dim())
            operands.append(operand.reshape(len(operand), *ones, *operand.shape[1:]).to(loop))
        return type(self).compute(*operands).to(output)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            first = random_array(random, self.takes)
            if self.ufunc.nin == 1:
                yield (first,), {}
                continue
            dtype = self.takes[random.integers(len(self.takes))]
            kind = random.integers(6)
            if kind == 0:
                second = random_array(random, [dtype], first.shape)
            elif kind == 1:
                second = random_array(random, [dtype], first.shape[-1:])[: first.shape[-1]]
            elif kind == 2:
                second = random_array(random, [first.dtype], first.shape)[..., :1]
            elif kind == 3:
                second = random_array(random, [dtype], (1,))[0] + first.dtype.type(3)
            elif kind == 4:
                second = float(random.normal(0, 2)) if first.dtype != np.bool_ else True
            else:
                second = int(random.integers(2, 5)) if first.dtype != np.bool_ else False
            yield ((first, second) if random.random() < 0.7 else (second, first)), {}


def loop_type(operand: Any) -> Any:
    """Returns what numpy's choice of a loop depends on: a dtype, or int or float for numbers without one."""
    if isinstance(operand, Spec):
        return NUMPY_DTYPES[operand.dtype]
    if isinstance(operand, (np.ndarray, np.generic)):
        return operand.dtype
    return np.dtype(np.bool_) if isinstance(operand, bool) else type(operand)


class Division(Ufunc):
    """A division that rounds: in integers, numpy and the devices disagree about 0, and the smallest number by -1."""

    def refuses_setting(self, value: np.ndarray, loop: np.dtype, last: bool) -> str | None:
        if last and loop.kind in "iu" and bool(np.any((value == 0) | (value == -1 if loop.kind == "i" else False))):
            return "integers are divided by 0 or -1"
        return None

    def refuses_data(self, loop: np.dtype, last: bool) -> str | None:
        return "the divisor is an array of integers, which may have zeros" if last and loop.kind in "iu" else None


class Power(Ufunc):
    """Integers to negative powers are numpy's error."""

    def tolerance_of(self, static: Any, outputs: Sequence[Spec]) -> Tolerance:
        return self.tolerance if outputs[0].dtype.is_floating_point else EXACT

    def refuses_setting(self, value: np.ndarray, loop: np.dtype, last: bool) -> str | None:
        return "an integer has a negative exponent" if last and loop.kind == "i" and bool(np.any(value < 0)) else None

    def refuses_data(self, loop: np.dtype, last: bool) -> str | None:
        return "the exponent is an array of integers, which may be negative" if last and loop.kind == "i" else None


ANY, NUMBERS, BOOLEANS = (*INTEGERS, *FLOATS, np.bool_), (*INTEGERS, *FLOATS), (np.bool_,)


def square_root(array: torch.Tensor) -> torch.Tensor:
    """Returns square roots. torch's in float32 are not always IEEE's; rounded from float64, they are."""
    return torch.sqrt(array.to(torch.float64)).to(array.dtype)


ROOT = Tolerance(0, 2.3e-16, note="exact in float32; the last digit of float64 may be rounded otherwise")
# Relative to a float's value; numpy and torch have different vector functions.
FUNCTION = Tolerance(1e-7, 5e-7, note="numpy and torch round transcendental functions differently, in the last digit")
LOOSE = Tolerance(1e-6, 3e-6, note="numpy and torch round powers differently, in the last digits")

# Name: (torch's function, tolerance, the dtypes of examples).
UNARY: dict[str, tuple[Callable[..., torch.Tensor], Tolerance, tuple[Any, ...]]] = {
    "negative": (torch.neg, EXACT, NUMBERS),
    "positive": (torch.clone, EXACT, NUMBERS),
    "absolute": (torch.abs, EXACT, NUMBERS),
    "square": (torch.square, EXACT, NUMBERS),
    "sign": (torch.sign, EXACT, NUMBERS),
    "floor": (torch.floor, EXACT, NUMBERS),
    "ceil": (torch.ceil, EXACT, NUMBERS),
    "trunc": (torch.trunc, EXACT, NUMBERS),
    "rint": (torch.round, EXACT, NUMBERS),
    "sqrt": (square_root, ROOT, FLOATS),
    "exp": (torch.exp, FUNCTION, FLOATS),
    "log": (torch.log, FUNCTION, FLOATS),
    "log2": (torch.log2, FUNCTION, FLOATS),
    "log10": (torch.log10, FUNCTION, FLOATS),
    "log1p": (torch.log1p, FUNCTION, FLOATS),
    "isnan": (torch.isnan, EXACT, FLOATS),
    "isinf": (torch.isinf, EXACT, FLOATS),
    "isfinite": (torch.isfinite, EXACT, FLOATS),
    "invert": (torch.bitwise_not, EXACT, (*INTEGERS, np.bool_)),
    "logical_not": (torch.logical_not, EXACT, ANY),
}
BINARY: dict[str, tuple[Callable[..., torch.Tensor], Tolerance, tuple[Any, ...]]] = {
    "add": (torch.add, EXACT, ANY),
    "subtract": (torch.sub, EXACT, NUMBERS),
    "multiply": (torch.mul, EXACT, ANY),
    "true_divide": (torch.true_divide, EXACT, NUMBERS),
    "floor_divide": (torch.floor_divide, EXACT, FLOATS),
    "remainder": (torch.remainder, EXACT, FLOATS),
    "power": (torch.pow, LOOSE, FLOATS),
    "maximum": (torch.maximum, EXACT, ANY),
    "minimum": (torch.minimum, EXACT, ANY),
    "equal": (torch.eq, EXACT, ANY),
    "not_equal": (torch.ne, EXACT, ANY),
    "less": (torch.lt, EXACT, ANY),
    "less_equal": (torch.le, EXACT, ANY),
    "greater": (torch.gt, EXACT, ANY),
    "greater_equal": (torch.ge, EXACT, ANY),
    "logical_and": (torch.logical_and, EXACT, ANY),
    "logical_or": (torch.logical_or, EXACT, ANY),
    "logical_xor": (torch.logical_xor, EXACT, ANY),
    "bitwise_and": (torch.bitwise_and, EXACT, BOOLEANS),
    "bitwise_or": (torch.bitwise_or, EXACT, BOOLEANS),
    "bitwise_xor": (torch.bitwise_xor, EXACT, BOOLEANS),
}
# Other names of the same ufuncs. numpy's own name of `true_divide` is "divide".
ALIASES = {"absolute": ("abs",), "true_divide": ("divide",), "remainder": ("mod",)}
BASES: dict[str, type[Ufunc]] = {"floor_divide": Division, "remainder": Division, "power": Power}

OPTIONS = '/, out=None, *, where=True, casting="same_kind", order="K", dtype=None, subok=True, signature=None'
for _table, _data in ((UNARY, ("x",)), (BINARY, ("x1", "x2"))):
    for _name, (_compute, _tolerance, _takes) in _table.items():
        for _target in (_name, *ALIASES.get(_name, ())):
            register(
                type(
                    "".join(part.capitalize() for part in _target.split("_")),
                    (BASES.get(_name, Ufunc),),
                    {
                        "target": f"numpy.{_target}", "parameters": f"{', '.join(_data)}, {OPTIONS}", "data": _data,
                        "ufunc": getattr(np, _name), "compute": staticmethod(_compute), "tolerance": _tolerance,
                        "takes": _takes,
                    },
                )
            )  # fmt: skip


# Elements in another order, or of another dtype.


@register
class Astype(ArrayStrategy):
    target = "numpy.ndarray.astype"
    parameters = 'self, dtype, order="K", casting="unsafe", subok=True, copy=True'

    def refuses(self, call: Call) -> str | None:
        array = self.array(call)
        dtype = ask_numpy(np.dtype, call["dtype"])
        if array.dtype.is_complex and dtype.kind != "c":
            return "complex arrays stay on the CPU"
        if not call["copy"] and dtype == NUMPY_DTYPES[array.dtype]:
            return "the array itself is returned"
        if not np.can_cast(NUMPY_DTYPES[array.dtype], dtype, call["casting"]):
            return f"numpy casts to {dtype} by no {call['casting']!r} rule"
        return None

    def map(self, call: Call) -> Mapped:
        dtype = torch_dtype(np.dtype(call["dtype"]))
        return Mapped(Spec("array", self.array(call).shape, dtype), dtype)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].to(static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            dtype = ANY[random.integers(len(ANY))]
            array = random_array(random, ANY)
            if np.dtype(dtype).kind in "iu" and array.dtype.kind == "f":
                array = np.abs(array)  # negative numbers are undefined in unsigned ones
            yield (array, dtype if random.random() < 0.7 else np.dtype(dtype).name), {}


@register
class Copy(ArrayStrategy):
    target = "numpy.ndarray.copy"
    parameters = 'self, order="C"'

    def map(self, call: Call) -> Mapped:
        return Mapped(Spec("array", self.array(call).shape, self.array(call).dtype))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0]

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (random_array(random),), {}


class Permutation(ArrayStrategy):
    """Another order of the dimensions."""

    def permuted(self, call: Call, array: np.ndarray) -> np.ndarray:
        """Returns the view of an array that the call would return."""
        raise NotImplementedError

    def map(self, call: Call) -> Mapped:
        array = self.array(call)
        view = ask_numpy(self.permuted, call, placeholder(array))
        # Sizes that tell the dimensions apart.
        order = self.permuted(call, np.broadcast_to(np.zeros(()), tuple(range(2, 2 + len(array.shape))))).shape
        return Mapped(spec_like(view), tuple(size - 2 for size in order))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].permute(0, *[dimension + 1 for dimension in static])


@register
class Transpose(Permutation):
    target = "numpy.ndarray.transpose"
    parameters = "self, *axes"

    def permuted(self, call: Call, array: np.ndarray) -> np.ndarray:
        return array.transpose(*call["axes"])

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random)
            axes = tuple(map(int, random.permutation(array.ndim)))
            yield [(array,), (array, None), (array, axes), (array, *axes)][random.integers(4)], {}


@register
class Swapaxes(Permutation):
    target = "numpy.ndarray.swapaxes"
    parameters = "self, axis1, axis2"

    def permuted(self, call: Call, array: np.ndarray) -> np.ndarray:
        return array.swapaxes(call["axis1"], call["axis2"])

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random)
            yield (array, *map(int, random.integers(-array.ndim, array.ndim, 2))), {}


class Shape(ArrayStrategy):
    """Another shape of the same elements in the same order."""

    def shape(self, call: Call, array: Spec) -> Sequence[int]:
        """Returns the result's shape."""
        raise NotImplementedError

    def map(self, call: Call) -> Mapped:
        array = self.array(call)
        shape = tuple(map(int, ask_numpy(self.shape, call, array)))
        return Mapped(Spec("array", shape, array.dtype), shape)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].reshape(len(inputs[0]), *static)


@register
class Reshape(Shape):
    target = "numpy.ndarray.reshape"
    parameters = 'self, *shape, order="C", copy=None'

    def refuses(self, call: Call) -> str | None:
        return given(call, order="C", copy=None)

    def shape(self, call: Call, array: Spec) -> Sequence[int]:
        shape = call["shape"]
        return reshaped(array.shape, shape[0] if len(shape) == 1 else shape)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random)
            last = array.shape[-1]
            shapes = [
                (array, -1),
                (array, (-1, last)),
                (array, last, -1),
                (array, array.size // last, last),
                (array, 1, -1),
            ]
            yield shapes[random.integers(5)], {}


def reshaped(shape: Sequence[int], wanted: Any) -> list[int]:
    """Returns the sizes that numpy gives an array of a shape for sizes of which one may be -1.

    Raises:
        ValueError: They do not fit.
    """
    sizes = [int(size) for size in wanted] if isinstance(wanted, (list, tuple)) else [int(wanted)]
    count, known = int(np.prod(shape)), int(np.prod([size for size in sizes if size != -1]))
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes) or (-1 in sizes and known == 0):
        raise ValueError(f"cannot reshape array of size {count} into shape {tuple(sizes)}")
    sizes = [count // known if size == -1 else size for size in sizes]
    if int(np.prod(sizes)) != count:
        raise ValueError(f"cannot reshape array of size {count} into shape {tuple(sizes)}")
    return sizes


@register
class Ravel(Shape):
    target = "numpy.ndarray.ravel"
    parameters = 'self, order="C"'

    def refuses(self, call: Call) -> str | None:
        return given(call, order="C")

    def shape(self, call: Call, array: Spec) -> Sequence[int]:
        return reshaped(array.shape, -1) if 0 not in array.shape else (0,)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (random_array(random),), {}


@register
class Flatten(Ravel):
    target = "numpy.ndarray.flatten"


@register
class Squeeze(Shape):
    target = "numpy.ndarray.squeeze"
    parameters = "self, axis=None"

    def shape(self, call: Call, array: Spec) -> Sequence[int]:
        return placeholder(array).squeeze(call["axis"]).shape

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random)
            kind = random.integers(4)
            yield [(array,), (array[None],), (array[..., None], -1), (array[None, None], (0, 1))][kind], {}


@register
class GetItem(ArrayStrategy):
    """Numbers, slices, ... and None. Where a slice begins is a sample's own: random crops share a batch."""

    target = "numpy.ndarray.__getitem__"
    parameters = "self, key"

    def refuses(self, call: Call) -> str | None:
        key = call["key"]
        for entry in key if isinstance(key, tuple) else (key,):
            bounds = (entry.start, entry.stop, entry.step) if isinstance(entry, slice) else (entry,)
            for bound in bounds:
                if isinstance(bound, (bool, np.bool_)) or not (
                    bound is None or bound is Ellipsis or isinstance(bound, (int, np.integer))
                ):
                    return "a mask or an array of indices selects elements"
        return None

    def map(self, call: Call) -> Mapped:
        array, key = self.array(call), call["key"]
        key = list(key) if isinstance(key, tuple) else [key]
        spec = spec_like(ask_numpy(placeholder(array).__getitem__, tuple(key)))
        used = sum(entry is not None and entry is not Ellipsis for entry in key)
        at = key.index(Ellipsis) if Ellipsis in key else len(key)
        key[at : at + 1] = [slice(None)] * (len(array.shape) - used)
        starts: list[int] = []
        steps: list[tuple[str, int, int]] = []  # for each entry: what it does, and two numbers
        sizes = iter(array.shape)
        for entry in key:
            if entry is None:
                steps.append(("new", 0, 0))
                continue
            size = next(sizes)
            if isinstance(entry, slice):
                bounds = range(*entry.indices(size))
                if len(bounds) == size and bounds.step in (1, -1):
                    steps.append(("flip" if bounds.step < 0 else "all", 0, 0))
                else:
                    steps.append(("range", bounds.step, len(bounds)))
                    starts.append(bounds.start if len(bounds) else 0)
            else:
                steps.append(("one", int(entry) % size, 0))
        return Mapped(spec, tuple(steps), tuple(starts))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        (result,) = inputs
        steps = [step for step in static if step[0] != "new"]
        ranges = [dimension for dimension, step in enumerate(steps, 1) if step[0] == "range"]
        if ranges:
            result = ranges_of(result, steps, ranges[-1], sample)
        flips = [dimension for dimension, step in enumerate(steps, 1) if step[0] == "flip"]
        if flips:
            result = result.flip(flips)
        for dimension, (what, index, _) in reversed(list(enumerate(steps, 1))):
            if what == "one":
                result = result.select(dimension, index)
        kept = [step[0] for step in static if step[0] != "one"]
        for dimension, what in enumerate(kept, 1):
            if what == "new":
                result = result.unsqueeze(dimension)
        return result

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random, shape=[(9, 8, 3), (12, 7), (3, 5, 6)][random.integers(3)])
            top, left = map(int, random.integers(0, 3, 2))
            keys = [
                slice(None, None, -1), (slice(top, top + 2), slice(left, left + 3)), (Ellipsis, slice(None, None, -1)),
                (None, Ellipsis), (0, slice(None)), (Ellipsis, -1), (slice(-2, None, -1), None, slice(1, None, 2)),
                1, slice(5, 2), (slice(None), slice(left, left + 2)), (Ellipsis, None), (), (slice(100), slice(-3, -1)),
            ]  # fmt: skip
            yield (array, keys[random.integers(len(keys))]), {}


def ranges_of(
    batch: torch.Tensor, steps: Sequence[tuple[str, int, int]], last: int, starts: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Returns the ranges of each sample, which begin elsewhere in each; other dimensions stay whole.

    What a sample has of the last range, and of the dimensions after it, is one run of elements if its step is 1. Then
    runs are copied from a view of all runs of that length, else elements one by one.

    Args:
        batch: [batch, ...].
        steps: What happens to the dimensions from 1 on.
        last: The last dimension with a range.
        starts: Where each range begins, [batch] each.
    """
    begin = iter(starts)
    whole_runs = steps[last - 1][1] == 1
    indices = [torch.arange(len(batch), device=batch.device).reshape(-1, *[1] * last)]
    for dimension, (what, step, length) in enumerate(steps[:last], 1):
        if what == "range":
            length = 1 if whole_runs and dimension == last else length
            index = next(begin)[:, None] + torch.arange(length, device=batch.device) * step
        else:
            index = torch.arange(batch.shape[dimension], device=batch.device)[None]
        indices.append(index.reshape(len(index), *[1] * (dimension - 1), -1, *[1] * (last - dimension)))
    if not whole_runs:
        return batch[tuple(indices)]
    sizes = batch.shape
    run = steps[last - 1][2]
    tail = int(np.prod(sizes[last + 1 :]))
    lengths = [step[2] if step[0] == "range" else sizes[at] for at, step in enumerate(steps[:last], 1)]
    if 0 in lengths or tail == 0:
        return batch.new_empty((sizes[0], *lengths, *sizes[last + 1 :]))
    place, stride = torch.zeros((), dtype=torch.int64, device=batch.device), tail
    for dimension in range(last, -1, -1):
        place = place + indices[dimension] * stride
        stride *= sizes[dimension]
    runs = batch.reshape(-1).unfold(0, run * tail, 1)
    return runs[place.squeeze(-1)].reshape(sizes[0], *lengths, *sizes[last + 1 :])


# Elements that are compared, and summed.


@register
class Clip(ArrayStrategy):
    target = "numpy.ndarray.clip"
    parameters = "self, min=None, max=None, out=None, **keywords"
    constants = 64

    def bounds(self, call: Call) -> tuple[Any, Any]:
        """Returns the call's lower and upper bound, None for none."""
        return call["min"], call["max"]

    def refuses(self, call: Call) -> str | None:
        if self.array(call).dtype.is_complex:
            return "complex arrays stay on the CPU"
        if call["keywords"]:
            return f"{next(iter(call['keywords']))}= is given"
        for bound in self.bounds(call):
            if bound is not None and not isinstance(bound, (bool, int, float, np.bool_, np.number)):
                return "a bound is an array"
        return call.given("out")

    def map(self, call: Call) -> Mapped:
        array, (low, high) = self.array(call), self.bounds(call)
        if array.shape == ():
            raise Unsupported("its result is a number")
        dtype = ask_numpy(np.clip, np.empty(0, NUMPY_DTYPES[array.dtype]), low, high).dtype
        if dtype.kind in "iu":  # a number of Python that bounds nothing need not fit
            limits = np.iinfo(dtype)
            low = max(low, int(limits.min)) if type(low) is int else low
            high = min(high, int(limits.max)) if type(high) is int else high
        wide = np.float64 if dtype.kind == "f" else np.int64
        bounds = [ask_numpy(np.asarray, bound, dtype) for bound in (low, high) if bound is not None]
        numbers = tuple(bound.astype(wide) for bound in bounds)
        static = (low is not None, high is not None, torch_dtype(dtype))
        return Mapped(Spec("array", array.shape, torch_dtype(dtype)), static, numbers)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        low, high, dtype = static
        result = inputs[0].to(dtype)
        bounds = [bound.to(dtype).reshape(-1, *[1] * (result.dim() - 1)) for bound in sample]
        if low:
            result = torch.maximum(result, bounds[0])
        return torch.minimum(result, bounds[-1]) if high else result

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            low, high = map(int, np.sort(random.integers(0, 100, 2)))
            array = random_array(random)
            pairs = [(low, high), (None, high), (low, None), (np.uint8(low), np.uint8(high))]
            yield (array, *pairs[random.integers(4)]), {}


class Reduction(ArrayStrategy):
    """One element for all along some dimensions."""

    reduce: ClassVar[Callable[..., Any]]
    # The dtypes whose sums numpy rounds otherwise.
    halves: ClassVar[bool] = False

    def refuses(self, call: Call) -> str | None:
        array = self.array(call)
        if array.dtype.is_complex or (array.dtype == torch.float16 and not self.halves):
            return f"{str(array.dtype).removeprefix('torch.')} arrays stay on the CPU"
        defaults = {"out": None, "where": True, "initial": None, "mean": None, "correction": None}
        return given(call, **{name: default for name, default in defaults.items() if name in call.arguments})

    def map(self, call: Call) -> Mapped:
        array, axis, keepdims = self.array(call), call["axis"], bool(call["keepdims"])
        rank = len(array.shape)
        dtype = call.arguments.get("dtype")
        ones = np.ones((1,) * rank, NUMPY_DTYPES[array.dtype])
        options = {} if dtype is None else {"dtype": dtype}
        answer = ask_numpy(type(self).reduce, ones, axis=axis, keepdims=keepdims, **options)
        if not isinstance(answer, np.ndarray):
            raise Unsupported("its result is a number")
        if answer.dtype.kind in "cO" or answer.dtype == np.float16:
            raise Unsupported(f"results of {answer.dtype} stay on the CPU")
        axes = range(rank) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
        axes = sorted(int(entry) % rank for entry in axes)
        count = int(np.prod([array.shape[entry] for entry in axes]))
        if 0 in array.shape or not axes:
            raise Unsupported("the array is empty, or no axis is given")
        shape = [1 if at in axes else size for at, size in enumerate(array.shape) if keepdims or at not in axes]
        output = torch_dtype(answer.dtype)
        ddof = call.arguments.get("ddof", 0)
        small = not array.dtype.is_floating_point and array.dtype.itemsize <= 2  # such integers are summed exactly
        static = (tuple(entry + 1 for entry in axes), keepdims, output, count, ddof, small)
        return Mapped(Spec("array", tuple(shape), output), static)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        axes, keepdims, output, count, ddof, _ = static
        return self.reduced(inputs[0], axes, keepdims, output, count, ddof)

    def reduced(
        self, array: torch.Tensor, axes: tuple[int, ...], keepdims: bool, output: torch.dtype, count: int, ddof: Any
    ) -> torch.Tensor:
        """Returns the results of a batch; `count` elements become one."""
        raise NotImplementedError

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            array = random_array(random, self.takes, shape=[(9, 8, 3), (12, 7), (3, 5, 6)][random.integers(3)])
            axis = [0, 1, -1, (0, 1)[: array.ndim - 1], tuple(range(-array.ndim + 1, 0))][random.integers(5)]
            if random.random() < 0.2:
                yield (array,), {"axis": None, "keepdims": True}
            else:
                yield (array, axis), {"keepdims": bool(random.integers(2))}

    takes: ClassVar[tuple[Any, ...]] = ()


SUMS = Tolerance(1e-4, 1e-5, note="sums are made in float64; numpy's own error in float32 is the larger one")


@register
class Mean(Reduction):
    target = "numpy.ndarray.mean"
    parameters = "self, axis=None, dtype=None, out=None, keepdims=False, *, where=True"
    tolerance = SUMS
    reduce = staticmethod(np.mean)

    def tolerance_of(self, static: Any, outputs: Sequence[Spec]) -> Tolerance:
        return EXACT if static[-1] and outputs[0].dtype == torch.float64 else self.tolerance

    def reduced(
        self, array: torch.Tensor, axes: tuple[int, ...], keepdims: bool, output: torch.dtype, count: int, ddof: Any
    ) -> torch.Tensor:
        return (total(array, axes, keepdims) / count).to(output)


def total(array: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    """Returns sums in float64: exact for integers below 2^53."""
    return array.sum(axes, keepdim=keepdims, dtype=torch.float64)


@register
class Std(Reduction):
    target = "numpy.ndarray.std"
    parameters = "self, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None"
    tolerance = SUMS
    reduce = staticmethod(np.std)

    def reduced(
        self, array: torch.Tensor, axes: tuple[int, ...], keepdims: bool, output: torch.dtype, count: int, ddof: Any
    ) -> torch.Tensor:
        wide = array.to(torch.float64)
        centered = wide - total(wide, axes, True) / count
        return (total(centered * centered, axes, keepdims) / max(count - ddof, 0)).sqrt().to(output)


@register
class Sum(Reduction):
    target = "numpy.ndarray.sum"
    parameters = "self, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True"
    tolerance = SUMS
    reduce = staticmethod(np.sum)
    takes = (np.int8, np.int32, np.int64, np.float32, np.float64, np.bool_)

    def tolerance_of(self, static: Any, outputs: Sequence[Spec]) -> Tolerance:
        return self.tolerance if outputs[0].dtype.is_floating_point else EXACT

    def reduced(
        self, array: torch.Tensor, axes: tuple[int, ...], keepdims: bool, output: torch.dtype, count: int, ddof: Any
    ) -> torch.Tensor:
        if output.is_floating_point:
            return total(array, axes, keepdims).to(output)
        return array.to(output).sum(axes, keepdim=keepdims, dtype=output)  # integers wrap around, as numpy's


@register
class Max(Reduction):
    target = "numpy.ndarray.max"
    parameters = "self, axis=None, out=None, keepdims=False, initial=None, where=True"
    reduce = staticmethod(np.max)

    def reduced(
        self, array: torch.Tensor, axes: tuple[int, ...], keepdims: bool, output: torch.dtype, count: int, ddof: Any
    ) -> torch.Tensor:
        return array.amax(axes, keepdim=keepdims)


@register
class Min(Max):
    target = "numpy.ndarray.min"
    reduce = staticmethod(np.min)

    def reduced(
        self, array: torch.Tensor, axes: tuple[int, ...], keepdims: bool, output: torch.dtype, count: int, ddof: Any
    ) -> torch.Tensor:
        return array.amin(axes, keepdim=keepdims)
