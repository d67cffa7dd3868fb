"""Follows data from the call that made it to the call that reads it.

- Arrays that a traced call returns become `TracedArray`s. What numpy computes of one is a traced call where there is
  a strategy, and inherits its maker elsewhere.
- Tensors are followed by identity; what torch computes of one in `Follow` inherits its maker.
- PIL images are followed by identity.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Follow", "Lineage", "Made", "TracedArray", "leaves", "plain"]


class Made:
    """A result of a traced call: the call's key, and whether something that is known read it."""

    __slots__ = ("key", "used")

    def __init__(self, key: Any) -> None:
        self.key, self.used = key, False


class TracedArray(np.ndarray):
    """An array that knows which traced call made it, or made what it was computed from.

    What numpy computes of it is recorded by `recorder`, as results that are not computed yet would be. It is called
    with a target, a function and the arguments, and returns NotImplemented for functions that it does not know.
    """

    made: Made | None = None
    recorder: ClassVar[Callable[..., Any] | None] = None

    def __array_finalize__(self, origin: Any) -> None:
        self.made = getattr(origin, "made", None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method == "__call__" and keywords.get("out") is None:
            result = recorded(f"numpy.{ufunc.__name__}", ufunc, inputs, keywords)
            if result is not NotImplemented:
                return result
        result = getattr(ufunc, method)(*plain(inputs), **plain(keywords))
        out = keywords.get("out")
        return self.inherited(result) if out is None else out[0] if len(out) == 1 else result

    def __array_function__(self, function: Any, types: Any, positional: Any, keywords: Any) -> Any:
        result = recorded(f"{function.__module__}.{function.__name__}", function, positional, keywords)
        return self.inherited(function(*plain(positional), **plain(keywords))) if result is NotImplemented else result

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __deepcopy__(self, memory: Any) -> np.ndarray:
        return np.array(self)

    def inherited(self, result: Any) -> Any:
        """Returns what numpy computed of this array as an array of the same maker."""
        if type(result) is not np.ndarray:
            return result
        traced = result.view(TracedArray)
        traced.made = self.made
        return traced


def recorded(target: str, function: Any, positional: Any, keywords: Any) -> Any:
    """Records a call of numpy; returns NotImplemented if nobody records."""
    recorder = TracedArray.recorder
    return NotImplemented if recorder is None else recorder(target, function, positional, keywords)


def traced_method(name: str) -> Callable[..., Any]:
    """Returns a method of arrays that is recorded."""
    original = getattr(np.ndarray, name)

    def method(self: TracedArray, *positional: Any, **keywords: Any) -> Any:
        result = recorded(f"numpy.ndarray.{name}", original, (self, *positional), keywords)
        if result is NotImplemented:
            return self.inherited(original(plain(self), *plain(positional), **plain(keywords)))
        return result

    method.__name__ = name
    return method


for _name in (
    "__getitem__", "astype", "clip", "copy", "flatten", "max", "mean", "min", "ravel", "reshape", "squeeze", "std",
    "sum", "swapaxes", "transpose",
):  # fmt: skip
    setattr(TracedArray, _name, traced_method(_name))


class Lineage:
    """Who made the data that a program holds."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[Any], Made]] = {}

    def mark(self, data: Any, made: Made) -> Any:
        """Notes that a call made data; returns what the program gets."""
        if type(data) is np.ndarray:
            traced = data.view(TracedArray)
            traced.made = made
            return traced
        if type(data) in (tuple, list):
            return type(data)(self.mark(entry, made) for entry in data)
        if isinstance(data, torch.Tensor) or is_image(data):
            key = id(data)
            self.known[key] = (weakref.ref(data, lambda _: self.known.pop(key, None)), made)
        return data

    def maker(self, data: Any) -> Made | None:
        """Returns who made data; None if no traced call did."""
        if isinstance(data, TracedArray):
            return data.made
        entry = self.known.get(id(data))
        return entry[1] if entry is not None and entry[0]() is data else None


class Follow(TorchFunctionMode):
    """Within, what torch computes of traced tensors is traced."""

    def __init__(self, lineage: Lineage) -> None:
        super().__init__()
        self.lineage = lineage

    def __torch_function__(self, function: Any, types: Any, positional: Any = (), keywords: Any = None) -> Any:
        result = function(*positional, **(keywords or {}))
        if isinstance(result, torch.Tensor) and self.lineage.maker(result) is None:
            for argument in leaves(positional):
                made = self.lineage.maker(argument)
                if made is not None:
                    self.lineage.mark(result, made)
                    break
        return result


def leaves(arguments: Any) -> Iterator[Any]:
    """Yields what lists, tuples and dicts hold."""
    if isinstance(arguments, (list, tuple)):
        for entry in arguments:
            yield from leaves(entry)
    elif isinstance(arguments, dict):
        for entry in arguments.values():
            yield from leaves(entry)
    else:
        yield arguments


def plain(arguments: Any) -> Any:
    """Returns arguments with arrays as the original function knows them."""
    if isinstance(arguments, TracedArray):
        return arguments.view(np.ndarray)
    if type(arguments) in (list, tuple):
        return type(arguments)(map(plain, arguments))
    if isinstance(arguments, tuple) and hasattr(arguments, "_fields"):
        return type(arguments)(*map(plain, arguments))
    if type(arguments) is dict:
        return {name: plain(entry) for name, entry in arguments.items()}
    return arguments


def is_image(data: Any) -> bool:
    """Whether something is a PIL image."""
    return type(data).__module__.startswith("PIL.") and hasattr(data, "mode")
