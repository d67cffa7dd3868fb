"""torch: functions and methods of tensors as they are, for a batch of samples by `torch.vmap`.

The results' sizes and types come from the same call on tensors of the meta device, once for each kind of call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.constant import Constant
from torch_hetero.migration.names import original_of
from torch_hetero.migration.spec import Spec
from torch_hetero.migration.strategy import Call, Mapped, Strategy, Tolerance, Unsupported, register

# Elementwise: each element has the bits that it has alone.
POINTWISE = """
    abs add sub mul div true_divide floor_divide pow neg exp log log1p log2 log10 sqrt rsqrt square sin cos tanh sigmoid relu
    floor ceil round trunc clamp clamp_min clamp_max clip maximum minimum fmod remainder eq ne lt le gt ge logical_and logical_or
    logical_not isnan isfinite nan_to_num sign reciprocal lerp
""".split()
METHODS = """
    float double half int long short byte bool to type_as __rsub__ __rdiv__ __rtruediv__ __rpow__ __eq__ __ne__ __floordiv__
    __rfloordiv__ __and__ __or__ __xor__ __invert__ rsub
""".split()
# The same elements in other places.
SHAPES = "permute transpose unsqueeze squeeze flatten reshape flip roll rot90 movedim".split()
SHAPE_METHODS = "view contiguous clone __getitem__ expand expand_as repeat t unflatten select narrow".split()
# Sums, whose order may be another one.
REDUCTIONS = "mean sum std var amax amin norm".split()

# A float tensor and a number give the same bits if the number is an element of a tensor.
SCALES = "add sub mul div true_divide __rsub__ __rdiv__ __rtruediv__ rsub".split()
BOOLEANS = ("__and__", "__or__", "__xor__", "__invert__")
# Their last bit depends on whether an element is computed in a full vector.
TRANSCENDENTAL = "exp log log1p log2 log10 sin cos tanh sigmoid pow rsqrt __rpow__".split()
LAST_BIT = Tolerance(relative=5e-7, absolute=1e-7, note="the last bit depends on how vectors are filled")
SUMS = Tolerance(relative=1e-5, absolute=1e-6, note="sums are made in another order")

Examples = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]


class Function(Strategy):
    """A function without side effects, whose arguments are tensors and numbers."""

    parameters = "*args, **kwargs"
    data = ("args",)
    constants = 64
    library = "torch"
    versions = ("2.11.", "2.15.")
    views = False

    def supports(self, call: Call) -> str | None:
        if call["kwargs"].get("out") is not None:
            return "out= is given"
        for entry in call["args"]:
            if isinstance(entry, Spec) and entry.kind != "tensor":
                return f"an argument is of kind {entry.kind}"
        devices = (call["kwargs"].get("device"), *call["args"][1:])
        if any(isinstance(entry, (str, torch.device)) for entry in devices):
            return "a device is given"
        return None

    def map(self, call: Call) -> Mapped:
        positional, numbers = call["args"], ()
        if self.target.rpartition(".")[2] in SCALES:
            first = next((entry for entry in positional if isinstance(entry, Spec)), None)
            if first is not None and first.dtype in (torch.float32, torch.float64):
                # Random factors differ from sample to sample.
                numbers = tuple(float(entry) for entry in positional if type(entry) in (int, float))
                positional = tuple(
                    Number(first.dtype) if type(entry) in (int, float) else entry for entry in positional
                )
        static = (frozen(positional), frozen(tuple(sorted(call["kwargs"].items()))))
        return Mapped(result_of(self.target, static), static, numbers)

    def run(self, inputs: Sequence[Any], static: Any, sample: Sequence[torch.Tensor]) -> Any:
        tensors, numbers = iter(inputs), iter(sample)
        arguments = [
            next(tensors) if isinstance(entry, Spec) else next(numbers).to(entry.dtype) for entry in places(static)
        ]
        return torch.vmap(functools.partial(called, self.target, static))(*arguments)

    def examples(self, random: np.random.Generator) -> Examples:
        for choice in iter(lambda: random.integers(1 << 30), None):
            shape = tuple(map(int, random.integers(5, 8, 3)))
            tensor = torch.from_numpy(random.uniform(0.1, 4, shape).astype(np.float32))
            name = self.target.rpartition(".")[2]
            if name in BOOLEANS:
                tensor = tensor > 1
            if name == "t":
                tensor = tensor.flatten(1)[:, :16].repeat(3, 1)
            yield (tensor, *example_arguments(name, tensor, int(choice))), {}


def example_arguments(name: str, tensor: torch.Tensor, choice: int) -> tuple[Any, ...]:
    """Returns further arguments for a call of a function on a tensor of three dimensions."""
    binary = "add sub mul div true_divide floor_divide pow maximum minimum fmod remainder eq ne lt le gt ge rsub"
    if name == "lerp":
        return tensor + 1, 0.25
    if name in binary.split() or name.startswith("__") and name not in ("__getitem__", "__invert__"):
        return (tensor.flip(0) if choice % 2 or name in ("maximum", "minimum", *BOOLEANS) else 1.5,)
    if name in ("logical_and", "logical_or", "type_as", "expand_as"):
        return (tensor > 1 if name.startswith("logical") else tensor.double() if name == "type_as" else tensor,)
    fixed = {
        "clamp": (0.5, 2), "clip": (None, 2.0), "clamp_min": (1.0,), "clamp_max": (1.0,), "permute": ((2, 0, 1),), "transpose": (0, 2),
        "unsqueeze": (choice % 4,), "flatten": (1,), "reshape": ((-1, tensor.shape[-1]),), "flip": ([choice % 3],), "roll": (1, choice % 3),
        "rot90": (1, (0, 1)), "movedim": (0, 2), "view": (-1,), "expand": (2, *tensor.shape), "repeat": (2, 1, 1),
        "unflatten": (0, (1, -1)), "select": (0, 0), "narrow": (0, 0, 1), "to": (torch.float64,),
        "__getitem__": ((slice(None), 0, ...) if choice % 2 else (None, slice(0, 1)),),
        "mean": (choice % 3,), "sum": ((0, 1),), "std": (0,), "var": (), "amax": (choice % 3,), "amin": ((0, 2),), "norm": (),
    }  # fmt: skip
    return fixed.get(name, ())


@dataclass(frozen=True)
class Number:
    """The place of a number that each sample has of its own, computed with as an element of a tensor."""

    dtype: torch.dtype


def places(static: Any) -> Iterator[Spec | Number]:
    """Yields the places of data and numbers in frozen arguments, in order."""
    if isinstance(static, (Spec, Number)):
        yield static
    elif type(static) is tuple:
        for entry in static:
            yield from places(entry)


def frozen(argument: Any) -> Hashable:
    """Returns an argument as a setting that can be compared: data as its spec, slices and lists as tuples."""
    if isinstance(argument, torch.Tensor):
        return Constant.of(argument)
    if isinstance(argument, slice):
        return ("slice", argument.start, argument.stop, argument.step)
    if type(argument) in (list, tuple, torch.Size):
        return ("tuple", *map(frozen, argument))
    try:
        hash(argument)
    except TypeError:
        raise Unsupported(f"an argument is a {type(argument).__name__}") from None
    return (type(argument), argument) if isinstance(argument, (bool, int, float)) else argument


def thawed(entry: Any, tensors: Iterator[torch.Tensor], device: torch.device) -> Any:
    """Returns what `frozen` was made of, with the next of `tensors` for each place."""
    if isinstance(entry, (Spec, Number)):
        return next(tensors)
    if isinstance(entry, Constant):
        return entry.on(device) if device.type != "meta" else entry.tensor.to(device)
    if type(entry) is tuple and entry:
        if entry[0] == "slice":
            return slice(*entry[1:])
        if entry[0] == "tuple":
            return tuple(thawed(inner, tensors, device) for inner in entry[1:])
        return entry[1]
    return entry


def called(target: str, static: Any, *tensors: torch.Tensor) -> Any:
    """Calls a function of torch with arguments as they were frozen."""
    rest = iter(tensors)
    positional, keywords = (thawed(entry, rest, tensors[0].device) for entry in static)
    return original_of(target)(*positional, **dict(keywords))


@functools.lru_cache(4096)
def result_of(target: str, static: Any) -> Spec:
    """Returns the spec of a call's result."""
    shapes = [(entry.shape if isinstance(entry, Spec) else (), entry.dtype) for entry in places(static)]
    try:
        result = called(target, static, *[torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes])
    except Exception as error:  # the original says it better
        raise Unsupported(f"it fails: {str(error).splitlines()[0]}") from None
    if not isinstance(result, torch.Tensor):
        raise Unsupported(f"its result is a {type(result).__name__}")
    return Spec("tensor", tuple(result.shape), result.dtype)


def add(target: str, tolerance: Tolerance | None = None, views: bool = False) -> None:
    """Registers the function of a target, if this torch has it."""
    try:
        original: Callable[..., Any] = original_of(target)
    except ImportError:
        return
    fields: dict[str, Any] = {"target": target, "views": views, "__doc__": (original.__doc__ or "").split("\n")[0]}
    if tolerance is not None:
        fields["tolerance"] = tolerance
    register(type(target.rpartition(".")[2], (Function,), fields))


for _name in POINTWISE:
    for _owner in ("torch", "torch.Tensor"):
        add(f"{_owner}.{_name}", LAST_BIT if _name in TRANSCENDENTAL else None)
add("torch.nn.functional.relu")
add("torch._tensor.pow", LAST_BIT)
for _name in METHODS:
    add(f"torch.Tensor.{_name}", LAST_BIT if _name in TRANSCENDENTAL else None, views=True)  # may be the tensor itself
for _name in SHAPES:
    for _owner in ("torch", "torch.Tensor"):
        add(f"{_owner}.{_name}", views=True)
for _name in SHAPE_METHODS:
    add(f"torch.Tensor.{_name}", views=True)
for _name in REDUCTIONS:
    for _owner in ("torch", "torch.Tensor"):
        add(f"{_owner}.{_name}", SUMS)
