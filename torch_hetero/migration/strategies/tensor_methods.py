"""torch: methods of tensors, and the functions of the same names.

torch itself is asked for the shape and the dtype of a result, with tensors on its meta device. Numbers, and tensors of
at most 64 elements, are settings of a sample. A view of a tensor that is not contiguous is a reshape here, where torch
may refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from torch_hetero.migration import arrays
from torch_hetero.migration.arrays import Examples, random_array
from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategy import EXACT, Call, Mapped, Strategy, Tolerance, Unsupported, register

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64,
)  # fmt: skip


def without_elements(operand: Any) -> Any:
    """Returns a tensor of a spec's shape and dtype that has no elements; other operands as they are."""
    if isinstance(operand, Spec):
        return torch.empty(operand.shape, dtype=operand.dtype, device="meta")
    if isinstance(operand, torch.Tensor) and operand.dim() > 0:
        return operand.to("meta")
    return operand


def ask_torch(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Returns what torch answers. If it raises, the call is left to the original, which raises the same."""
    try:
        return function(*map(without_elements, arguments), **keywords)
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else ""
        raise Unsupported(f"torch raises {type(error).__name__}: {text}") from None


def spec_like(answer: torch.Tensor) -> Spec:
    """Returns the spec of a tensor that torch answered."""
    if answer.dtype not in DTYPES:
        raise Unsupported(f"tensors of {str(answer.dtype).removeprefix('torch.')} stay on the CPU")
    return Spec("tensor", tuple(answer.shape), answer.dtype)


def refused(operand: Any, name: str) -> str | None:
    """Returns a reason not to compute with an operand."""
    if isinstance(operand, Spec):
        if operand.kind != "tensor":
            return f"{name} is no tensor"
        kind = operand.dtype
    elif isinstance(operand, torch.Tensor):
        if operand.requires_grad or operand.device.type != "cpu":
            return f"{name} requires a gradient, or is on another device"
        kind = operand.dtype
    else:
        return None if isinstance(operand, (bool, int, float)) else f"{name} is of type {type(operand).__name__}"
    return None if kind in DTYPES else f"tensors of {str(kind).removeprefix('torch.')} stay on the CPU"


def random_tensor(
    random: np.random.Generator, dtypes: Sequence[Any] = arrays.NUMBERS, shape: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns noise of more than 64 elements."""
    return torch.from_numpy(random_array(random, dtypes, shape))


class TensorStrategy(Strategy):
    """A method of a tensor, or the function of the same name."""

    family = "generic"
    library = "torch"
    versions = ("2.11.",)
    data = ("self",)
    function: Callable[..., Any]

    def source(self, call: Call) -> Spec:
        """Returns the call's tensor."""
        return call[self.data[0]]

    def supports(self, call: Call) -> str | None:
        source = self.source(call)
        if not isinstance(source, Spec):
            return f"{self.data[0]} is no tensor, or has at most 64 elements"
        return refused(source, self.data[0]) or self.refuses(call)

    def refuses(self, call: Call) -> str | None:
        """Returns `supports` for a call whose tensor is one."""
        return None


def register_both(base: type[Strategy], name: str, parameters: str, both: bool = True, **attributes: Any) -> None:
    """Registers a method, and the function of that name unless there is none. `{self}` is the tensor's parameter."""
    targets = [("torch.Tensor", "self"), *([("torch", "input")] if both else [])]
    for module, first in targets:
        data = tuple(entry.format(self=first) for entry in attributes.get("data", ("{self}",)))
        body = attributes | {
            "target": f"{module}.{name}", "parameters": parameters.format(self=first), "data": data,
        }  # fmt: skip
        register(type(name.strip("_").title().replace("_", ""), (base,), body))


# Elements by themselves.


class Elementwise(arrays.Ufunc):
    """An operator of one or two operands; see `arrays.Ufunc.run`."""

    library = "torch"
    versions = ("2.11.",)
    function: Callable[..., torch.Tensor]
    numbers: ClassVar[bool] = True  # whether an operand may be a number, and whether it may be something else
    tensors: ClassVar[bool] = True

    def supports(self, call: Call) -> str | None:
        for name in self.data:
            reason = refused(call[name], name)
            if reason is not None:
                return reason
        if call.arguments.get("alpha", 1) != 1:
            return "alpha= is given"
        if type(self).function in (torch.sub, reversed_sub):
            if any(getattr(call[name], "dtype", type(call[name])) in (torch.bool, bool) for name in self.data):
                return "torch subtracts no booleans"
        if len(self.data) == 2:
            is_number = isinstance(call["other"], (bool, int, float))
            if not (self.numbers if is_number else self.tensors):
                return "other is a number" if is_number else "other is no number"
        return call.given(*[name for name in ("out", "rounding_mode") if name in call.arguments])

    def map(self, call: Call) -> Mapped:
        operands = [call[name] for name in self.data]
        result = spec_like(ask_torch(type(self).function, *operands))
        if len(operands) == 1:
            loop = result.dtype if result.dtype != torch.bool else operands[0].dtype
        else:
            loop = ask_torch(torch.result_type, *operands)
            loop = result.dtype if result.dtype.is_floating_point else loop
        settings = []
        for operand in operands:
            if not isinstance(operand, Spec):
                tensor = torch.as_tensor(operand, dtype=loop)
                settings.append(tensor.to(wide(loop)).numpy())
        is_data = tuple(isinstance(operand, Spec) for operand in operands)
        return Mapped(result, (is_data, (loop,) * len(operands), result.dtype, len(result.shape)), tuple(settings))

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            first = random_tensor(random, self.takes)
            if len(self.data) == 1:
                yield (first,), {}
                continue
            dtype = self.takes[random.integers(len(self.takes))]
            same = random_tensor(random, [dtype], first.shape)
            others = [
                same, same[..., :1].clone(), same.reshape(-1, first.shape[-1])[0].clone(), torch.tensor(3.0),
                int(random.integers(1, 5)), float(random.uniform(0.5, 3)),
            ][0 if self.tensors else 4 : None if self.numbers else 4]  # fmt: skip
            yield (first, others[random.integers(len(others))]), {}


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of settings with all values of another."""
    return torch.float64 if dtype.is_floating_point else torch.bool if dtype == torch.bool else torch.int64


def reversed_sub(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns other - one."""
    return other - one


def reversed_div(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns other / one, in the way of `Tensor.__rdiv__`."""
    return torch.reciprocal(one) * other


FUNCTION = Tolerance(1e-7, 5e-7, note="functions of fused and of single operators differ in the last digit")
NUMBERS, ANY, FLOATS = arrays.NUMBERS, arrays.ANY, arrays.FLOATS

# Name: (torch's function, tolerance, the dtypes of examples, whether torch has a function of that name).
UNARY: dict[str, tuple[Callable[..., torch.Tensor], Tolerance, tuple[Any, ...]]] = {
    "neg": (torch.neg, EXACT, NUMBERS),
    "abs": (torch.abs, EXACT, NUMBERS),
    "square": (torch.square, EXACT, FLOATS),
    "floor": (torch.floor, EXACT, FLOATS),
    "ceil": (torch.ceil, EXACT, FLOATS),
    "sqrt": (torch.sqrt, FUNCTION, FLOATS),
    "exp": (torch.exp, FUNCTION, FLOATS),
    "log": (torch.log, FUNCTION, FLOATS),
    "log2": (torch.log2, FUNCTION, FLOATS),
    "log10": (torch.log10, FUNCTION, FLOATS),
    "log1p": (torch.log1p, FUNCTION, FLOATS),
    "sigmoid": (torch.sigmoid, FUNCTION, FLOATS),
    "tanh": (torch.tanh, FUNCTION, FLOATS),
    "logical_not": (torch.logical_not, EXACT, ANY),
}
BINARY: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "add": (torch.add, "{self}, other, *, alpha=1{out}"),
    "sub": (torch.sub, "{self}, other, *, alpha=1{out}"),
    "mul": (torch.mul, "{self}, other{star}{out}"),
    "div": (torch.div, "{self}, other, *, rounding_mode=None{out}"),
    "maximum": (torch.maximum, "{self}, other{star}{out}"),
    "minimum": (torch.minimum, "{self}, other{star}{out}"),
    "eq": (torch.eq, "{self}, other{star}{out}"),
    "ne": (torch.ne, "{self}, other{star}{out}"),
    "lt": (torch.lt, "{self}, other{star}{out}"),
    "le": (torch.le, "{self}, other{star}{out}"),
    "gt": (torch.gt, "{self}, other{star}{out}"),
    "ge": (torch.ge, "{self}, other{star}{out}"),
}
# Operators that torch does not turn into one of the methods above.
OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "__rsub__": reversed_sub, "__rdiv__": reversed_div, "__eq__": torch.eq, "__ne__": torch.ne,
}  # fmt: skip

for _name, (_function, _tolerance, _takes) in UNARY.items():
    _row = {"function": staticmethod(_function), "compute": staticmethod(_function)}
    register_both(Elementwise, _name, "{self}, *, out=None", tolerance=_tolerance, takes=_takes, **_row)
for _name, (_function, _parameters) in BINARY.items():
    _row = {"function": staticmethod(_function), "compute": staticmethod(_function)}
    _parameters = _parameters.replace("{star}", ", *").replace("{out}", ", out=None")
    _row |= {"data": ("{self}", "other"), "takes": NUMBERS, "numbers": _name not in ("maximum", "minimum")}
    register_both(Elementwise, _name, _parameters, **_row)
for _name, _function in OPERATORS.items():
    _row = {"function": staticmethod(_function), "compute": staticmethod(_function)}
    _row |= {"data": ("{self}", "other"), "takes": NUMBERS}
    if _name == "__rdiv__":
        _row |= {"takes": FLOATS, "tensors": False}
    register_both(Elementwise, _name, "{self}, other", both=False, **_row)


class Clamp(TensorStrategy):
    """Numbers as bounds are a sample's own."""

    def refuses(self, call: Call) -> str | None:
        for name in ("min", "max"):
            if call[name] is not None and not isinstance(call[name], (bool, int, float)):
                return f"{name} is a tensor"
        return call.given("out")

    def map(self, call: Call) -> Mapped:
        low, high = call["min"], call["max"]
        result = spec_like(ask_torch(torch.clamp, self.source(call), low, high))
        bounds = [torch.as_tensor(bound, dtype=result.dtype) for bound in (low, high) if bound is not None]
        numbers = tuple(bound.to(wide(result.dtype)).numpy() for bound in bounds)
        return Mapped(result, (low is not None, high is not None, result.dtype), numbers)

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
            options = [{"min": low}, {"max": float(high)}, {"min": low, "max": high}, {"min": 0.5, "max": high + 1}]
            yield (random_tensor(random),), options[random.integers(4)]


register_both(Clamp, "clamp", "{self}, min=None, max=None, *, out=None")
register_both(Clamp, "clip", "{self}, min=None, max=None, *, out=None")


# The same elements, in another dtype or order.


class Cast(TensorStrategy):
    """Another dtype."""

    dtype: ClassVar[torch.dtype]

    def wanted(self, call: Call) -> torch.dtype:
        """Returns the result's dtype."""
        return self.dtype

    def refuses(self, call: Call) -> str | None:
        return call.given(*[name for name in ("memory_format",) if name in call.arguments])

    def map(self, call: Call) -> Mapped:
        dtype = self.wanted(call)
        if dtype not in DTYPES:
            raise Unsupported(f"tensors of {str(dtype).removeprefix('torch.')} stay on the CPU")
        return Mapped(Spec("tensor", self.source(call).shape, dtype), dtype)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].to(static)

    def arguments(self, random: np.random.Generator) -> tuple[Any, ...]:
        """Returns the arguments after the tensor."""
        return ()

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (random_tensor(random).abs(), *self.arguments(random)), {}


for _name, _dtype in [
    ("float", torch.float32), ("double", torch.float64), ("int", torch.int32), ("long", torch.int64),
    ("short", torch.int16), ("byte", torch.uint8), ("bool", torch.bool),
]:  # fmt: skip
    register_both(Cast, _name, "{self}, memory_format=None", both=False, dtype=_dtype)


@register
class To(Cast):
    target = "torch.Tensor.to"
    parameters = "self, *arguments, **keywords"

    def refuses(self, call: Call) -> str | None:
        arguments, keywords = call["arguments"], call["keywords"]
        if len(arguments) == 1 and isinstance(arguments[0], torch.dtype) and not keywords:
            return None
        return None if not arguments and list(keywords) == ["dtype"] else "more than a dtype is given"

    def wanted(self, call: Call) -> torch.dtype:
        return call["arguments"][0] if call["arguments"] else call["keywords"]["dtype"]

    def arguments(self, random: np.random.Generator) -> tuple[Any, ...]:
        return ([torch.float32, torch.int64, torch.float64, torch.uint8][random.integers(4)],)


class Same(Cast):
    """The same elements."""

    def wanted(self, call: Call) -> torch.dtype:
        return self.source(call).dtype


register_both(Same, "contiguous", "{self}, memory_format=None", both=False)
register_both(Same, "clone", "{self}, *, memory_format=None")
register_both(Same, "detach", "{self}")


@register
class Numpy(TensorStrategy):
    target = "torch.Tensor.numpy"
    parameters = "self, *, force=False"

    def map(self, call: Call) -> Mapped:
        return Mapped(Spec("array", self.source(call).shape, self.source(call).dtype))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0]

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (random_tensor(random),), {}


class Movement(TensorStrategy):
    """Another shape: `move` is the method's name, and its arguments after the tensor are those of the call."""

    move: ClassVar[str]
    choices: ClassVar[tuple[tuple[Any, ...], ...]]
    sizes: ClassVar[tuple[int, ...]] = (3, 5, 6)

    def arguments(self, call: Call) -> tuple[Any, ...]:
        """Returns the arguments after the tensor."""
        return tuple(value for name, value in call.arguments.items() if name not in self.data)

    def refuses(self, call: Call) -> str | None:
        plain = [
            entry
            for value in self.arguments(call)
            for entry in (value if isinstance(value, (list, tuple)) else [value])
        ]
        return None if all(isinstance(entry, int) for entry in plain) else "an argument is no number"

    def map(self, call: Call) -> Mapped:
        source, arguments = self.source(call), self.arguments(call)
        result = spec_like(ask_torch(getattr(torch.Tensor, self.move), source, *arguments))
        return Mapped(result, self.settings(source, arguments, result))

    def settings(self, source: Spec, arguments: tuple[Any, ...], result: Spec) -> Any:
        """Returns the static setting of `run`."""
        return result.shape

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].reshape(len(inputs[0]), *static)

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            yield (random_tensor(random, shape=self.sizes), *self.choices[random.integers(len(self.choices))]), {}


class Sizes(Movement):
    """A shape as several arguments, or as one."""

    def arguments(self, call: Call) -> tuple[Any, ...]:
        (given,) = (value for name, value in call.arguments.items() if name not in self.data)
        if not isinstance(given, (list, tuple)):
            return (given,)
        return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (list, tuple)) else tuple(given)

    def map(self, call: Call) -> Mapped:
        source, sizes = self.source(call), self.arguments(call)
        result = spec_like(ask_torch(getattr(torch.Tensor, self.move), source, sizes))
        return Mapped(result, self.settings(source, sizes, result))


class Optional(Movement):
    """A dimension that need not be given."""

    def arguments(self, call: Call) -> tuple[Any, ...]:
        return tuple(value for value in super().arguments(call) if value is not None)


class Permute(Sizes):
    """Dimensions in another order."""

    def settings(self, source: Spec, arguments: tuple[Any, ...], result: Spec) -> Any:
        return tuple(entry % len(source.shape) + 1 for entry in arguments)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].permute(0, *static)


class Flip(Permute):
    """Elements in the opposite order."""

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].flip(static)


class Transpose(Permute):
    """Two dimensions change places."""

    def arguments(self, call: Call) -> tuple[Any, ...]:
        return Movement.arguments(self, call)

    def map(self, call: Call) -> Mapped:
        return Movement.map(self, call)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        return inputs[0].transpose(*static)


class Expand(Sizes):
    """Dimensions of one element that are repeated without a copy."""

    def settings(self, source: Spec, arguments: tuple[Any, ...], result: Spec) -> Any:
        return len(result.shape) - len(source.shape), result.shape

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        new, shape = static
        batch = inputs[0].reshape(len(inputs[0]), *[1] * new, *inputs[0].shape[1:])
        return batch.expand(len(batch), *shape)


SHAPES = ((-1,), (15, 6), ((15, -1),), (3, 5, 3, 2))
register_both(Sizes, "view", "{self}, *shape", both=False, move="view", choices=SHAPES)
register_both(Sizes, "reshape", "{self}, *shape", both=False, move="reshape", choices=SHAPES)
register_both(Permute, "permute", "{self}, *dims", both=False, move="permute", choices=((2, 0, 1), ((1, -1, 0),)))
register_both(Flip, "flip", "{self}, *dims", both=False, move="flip", choices=((0,), ((1, 2),), ([-1],), (0, 2)))
register_both(
    Expand, "expand", "{self}, *size", both=False, move="expand", choices=((2, 3, 5, 6), ((-1, 5, 6),), (3, -1, -1))
)
register(
    type(
        "FlipFunction",
        (Flip,),
        {
            "target": "torch.flip", "parameters": "input, dims", "data": ("input",), "move": "flip",
            "choices": (((1, 2),), ([-1],)),
        },
    )
)  # fmt: skip
register_both(Transpose, "transpose", "{self}, dim0, dim1", move="transpose", choices=((0, 1), (-1, 0), (2, 1)))
register_both(Movement, "unsqueeze", "{self}, dim", move="unsqueeze", choices=((0,), (-1,), (2,)))
register_both(
    Movement, "flatten", "{self}, start_dim=0, end_dim=-1", move="flatten", choices=((), (1,), (0, 1), (-2, -1))
)
register_both(Optional, "squeeze", "{self}, dim=None", move="squeeze", choices=((), (0,), (-1,)), sizes=(1, 70, 1))


@register
class GetItem(arrays.GetItem):
    target = "torch.Tensor.__getitem__"
    library = "torch"
    versions = ("2.11.",)
    kinds = ("tensor",)

    def indexed(self, array: Spec, key: tuple[Any, ...]) -> Spec:
        return Spec("tensor", tuple(ask_torch(torch.Tensor.__getitem__, array, key).shape), array.dtype)

    def examples(self, random: np.random.Generator) -> Examples:
        for (array, key), keywords in super().examples(random):
            entries = key if isinstance(key, tuple) else (key,)
            if all(not isinstance(entry, slice) or entry.step is None or entry.step > 0 for entry in entries):
                yield (torch.from_numpy(array), key), keywords
            else:
                yield (torch.from_numpy(array), (0, 1)), {}


# Elements that become one.


class Reduction(TensorStrategy):
    """One element for all along some dimensions, or for all."""

    takes: ClassVar[tuple[Any, ...]] = FLOATS

    def refuses(self, call: Call) -> str | None:
        source = self.source(call)
        if 0 in source.shape or not source.shape:
            return "the tensor is empty or a number"
        dim = call["dim"]
        dims = dim if isinstance(dim, (list, tuple)) else (dim,)
        if not all(entry is None or (isinstance(entry, int) and not isinstance(entry, bool)) for entry in dims):
            return "dim is no dimension"
        return call.given(*[name for name in ("out", "dtype") if name in call.arguments])

    def map(self, call: Call) -> Mapped:
        source, dim, keepdim = self.source(call), call["dim"], call["keepdim"]
        dims = (
            tuple(range(len(source.shape)))
            if dim in (None, (), [])
            else dim
            if isinstance(dim, (list, tuple))
            else (dim,)
        )
        options = {"correction": call["correction"]} if "correction" in call.arguments else {}
        result = spec_like(ask_torch(type(self).function, source, dims, keepdim=keepdim, **options))
        return Mapped(result, (tuple(entry % len(source.shape) + 1 for entry in dims), keepdim, tuple(options.items())))

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> torch.Tensor:
        dims, keepdim, options = static
        return type(self).function(inputs[0], dims, keepdim=keepdim, **dict(options))

    def examples(self, random: np.random.Generator) -> Examples:
        while True:
            tensor = random_tensor(random, self.takes, (3, 5, 6))
            dims = [0, -1, (1, 2), (-1, 0), None][random.integers(5)]
            if dims is None:
                yield (tensor,), {}
            else:
                yield (tensor, dims), {"keepdim": bool(random.integers(2))}


SUMS = Tolerance(2e-6, 2e-6, note="sums of batches are made in another order")
_plain = "{self}, dim=None, keepdim=False, *, dtype=None, out=None"
for _name, _function, _tolerance, _parameters, _takes in [
    ("mean", torch.mean, SUMS, _plain, FLOATS),
    ("sum", torch.sum, SUMS, _plain, NUMBERS),
    ("amax", torch.amax, EXACT, "{self}, dim=None, keepdim=False, *, out=None", NUMBERS),
    ("amin", torch.amin, EXACT, "{self}, dim=None, keepdim=False, *, out=None", NUMBERS),
    ("std", torch.std, SUMS, "{self}, dim=None, *, correction=1, keepdim=False, out=None", FLOATS),
]:
    _row = {"function": staticmethod(_function), "tolerance": _tolerance, "takes": _takes}
    register_both(Reduction, _name, _parameters, **_row)
