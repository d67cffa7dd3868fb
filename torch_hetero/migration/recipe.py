"""Recipes: how values are computed, as data, before they are computed.

A migrated call returns at once. Its result is a `Value` that knows its `Spec` and its `Step`: the strategy, the values
that it reads, and its settings. Values and steps form a recipe, a directed acyclic graph that ends in `Source`s, which
hold bytes. Two parties can compute a value:

- `host_result` calls the original functions with the original arguments. The result is theirs by definition. Workers of
  a DataLoader, and code that needs one value now, do this.
- `evaluate.evaluate` computes many values at once on a device. Steps that many values share run as one batch.

Values never change. Handles (`handles.py`) are what user code holds; they may move from one value to another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_hetero.migration.context import untracked
from torch_hetero.migration.spec import Spec, from_tensor
from torch_hetero.migration.strategy import Strategy

__all__ = ["Result", "Source", "Step", "Value", "call_original", "host_result", "is_leaf", "leaf_data"]


class Value:
    """Something that can be computed. `row` is where a device has it: (batch, index), once computed there."""

    __slots__ = ("__weakref__", "row", "spec")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.row: tuple[torch.Tensor, int] | None = None


class Source(Value):
    """Bytes that no step computes: a snapshot of what user code passed to a migrated call."""

    __slots__ = ("data",)

    def __init__(self, spec: Spec, data: torch.Tensor) -> None:
        super().__init__(spec)
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (self.spec, self.data)


class Result(Value):
    """The output number `index` of a step."""

    __slots__ = ("index", "step")

    def __init__(self, spec: Spec, step: Step, index: int = 0) -> None:
        super().__init__(spec)
        self.step, self.index = step, index

    def __reduce__(self) -> tuple[Any, ...]:
        return Result, (self.spec, self.step, self.index)


@dataclass(slots=True, eq=False)
class Step:
    """One migrated call.

    Attributes:
        strategy: What computes it.
        inputs: The values that it reads, in the order of the strategy's data parameters.
        static: Settings that must be equal for calls to run as one batch.
        sample: Settings that each sample has of its own: numbers, or arrays of one shape.
        arguments: The call itself, for the original: positional and keyword arguments in which inputs are `Value`s. None
            once a device has its results: then the step holds on to nothing, so that sources can die.
        original: The function that was replaced.
        outputs: The specs of its results.
        key: The context in which the call was made, for reports.
        device: Where it is computed; empty for whatever device computes the rest.
    """

    strategy: Strategy
    inputs: tuple[Value, ...]
    static: Hashable
    sample: tuple[Any, ...]
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None
    original: Callable[..., Any]
    outputs: tuple[Spec, ...]
    key: str = ""
    device: str = ""

    def released(self) -> Step:
        """Returns the step without what it was computed from."""
        return replace(self, inputs=(), sample=(), arguments=None)


def host_result(value: Value, made: Callable[[Step], None] = lambda step: None) -> Any:
    """Computes a value by the original functions; returns a new array, image or CPU tensor, which the caller owns.

    Args:
        value: The result wanted.
        made: Told of each step that was computed.

    Raises:
        Exception: The originals' own errors.
    """
    results: dict[int, tuple[Any, ...]] = {}  # by step
    sources: dict[int, Any] = {}

    def known(entry: Value) -> bool:
        return id(entry) in sources if is_leaf(entry) else id(entry.step) in results

    def result_of(entry: Value) -> Any:
        return sources[id(entry)] if is_leaf(entry) else results[id(entry.step)][entry.index]

    pending = [value]  # no recursion: recipes may be long
    while pending:
        top = pending[-1]
        if known(top):
            pending.pop()
        elif is_leaf(top):
            sources[id(top)] = from_tensor(leaf_data(top).cpu().clone(), top.spec)
        else:
            missing = [entry for entry in top.step.inputs if not known(entry)]
            pending.extend(missing)
            if not missing:
                results[id(top.step)] = call_original(top.step, result_of)
                made(top.step)
    return result_of(value)


def is_leaf(value: Value) -> bool:
    """Whether there are bytes of a value, and no recipe."""
    return isinstance(value, Source) or value.step.arguments is None


def leaf_data(leaf: Value) -> torch.Tensor:
    """Returns the bytes of a leaf, wherever they are."""
    return leaf.data if isinstance(leaf, Source) else leaf.row[0][leaf.row[1]]


def call_original(step: Step, result_of: Callable[[Value], Any]) -> tuple[Any, ...]:
    """Calls the function that a step replaced, on the results of its inputs; returns the results that are data."""

    def concrete(argument: Any) -> Any:
        if isinstance(argument, Value):
            return result_of(argument)
        if type(argument) in (list, tuple):
            return type(argument)(concrete(entry) for entry in argument)
        return argument

    positional, keywords = step.arguments
    with untracked():
        result = step.original(*map(concrete, positional), **{name: concrete(keywords[name]) for name in keywords})
    return step.strategy.data_results(result)
