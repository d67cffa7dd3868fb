"""From a call to a step: arguments are bound, data is captured, and the strategy is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_hetero.migration.names import unwrapped
from torch_hetero.migration.recipe import Result, Source, Step, Value
from torch_hetero.migration.spec import Spec, spec_of, to_tensor
from torch_hetero.migration.strategy import Call, OnHost, Strategy, Unsupported

__all__ = ["record", "results"]


# What `numpy.errstate` may ask for where warnings are not enough.
REPORTED = {"raise", "call", "print", "log"}


def needs_gradient(argument: Any) -> bool:
    """Whether an argument is a tensor that requires its gradient, or a list with one."""
    if isinstance(argument, torch.Tensor):
        return argument.requires_grad
    if type(argument) is dict:
        argument = list(argument.values())
    return type(argument) in (list, tuple) and any(map(needs_gradient, argument))


def record(
    strategy: Strategy,
    original: Callable[..., Any],
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    capture: Callable[[Any], Value | None],
    key: str = "",
    device: str | None = None,
) -> tuple[Step, Callable[..., Any] | None]:
    """Returns the step of a call, and how its data results become the call's result (`Mapped.build`).

    Args:
        strategy: The strategy of the function that is called.
        original: That function.
        positional: The call's arguments.
        keywords: The call's keyword arguments.
        capture: Returns the value of data, and None for what is no data.
        key: The context of the call.
        device: Where the step is computed; where its first input is if it is not given.

    Raises:
        Unsupported: The strategy does not cover the call.
        TypeError: The arguments are not the function's.
    """
    if isinstance(strategy, OnHost):
        raise Unsupported(strategy.reason)
    arguments = strategy.bind(*positional, **keywords)
    if any(map(needs_gradient, arguments.values())):
        raise Unsupported("a tensor requires its gradient")
    if strategy.target.startswith("numpy.") and not REPORTED.isdisjoint(np.geterr().values()):
        raise Unsupported("numpy is told to report errors of floats")
    inputs: list[Value] = []
    values: dict[int, Any] = {}  # by the object that was captured; snapshots of constants, too
    read = strategy.read(arguments)
    if read:
        arguments |= read
        positional, keywords = (), dict(arguments)
        values = {id(data): Source(spec_of(data), to_tensor(data)) for data in read.values()}

    def captured(data: Any) -> Any:
        if type(data) in (list, tuple):
            return type(data)(captured(entry) for entry in data)
        if strategy.constants:  # an empty array is data of strategies without constants
            if type(data) is np.ndarray and data.size <= strategy.constants:
                return values.setdefault(id(data), data.copy())
            if type(data) is torch.Tensor and data.numel() <= strategy.constants and data.device.type == "cpu":
                return values.setdefault(id(data), data.detach().clone())
        value = values.get(id(data)) or capture(data)
        if value is None:
            return data
        values[id(data)] = value
        inputs.append(value)
        return value.spec

    given = {name: arguments[name] for name in strategy.data}

    def elements_of(name: str) -> torch.Tensor:
        value = values[id(given[name])]
        if not isinstance(value, Source) or value.data.device.type != "cpu":
            raise Unsupported(f"{name}= is not on the host")
        return value.data

    for name in strategy.data:
        arguments[name] = captured(arguments[name])
    if not inputs:
        small = f", or it has at most {strategy.constants} elements" if strategy.constants else ""
        raise Unsupported(f"no argument is an array, an image or a tensor{small}")
    call = Call(arguments, elements_of)
    reason = strategy.supports(call)
    if reason is not None:
        raise Unsupported(reason)
    mapped = strategy.map(call)

    def replaced(argument: Any) -> Any:
        if type(argument) in (list, tuple):
            return type(argument)(replaced(entry) for entry in argument)
        if id(argument) in values:
            return values[id(argument)]
        # The program may change a setting before the call is computed.
        return argument.copy() if type(argument) is np.ndarray else argument

    if device is None:
        device = next((value.step.device for value in inputs if isinstance(value, Result)), "")
    outputs = (mapped.outputs,) if isinstance(mapped.outputs, Spec) else mapped.outputs
    step = Step(
        strategy, tuple(inputs), mapped.static, mapped.sample,
        (tuple(map(replaced, positional)), {name: replaced(argument) for name, argument in keywords.items()}),
        mapped.original or unwrapped(original), outputs, key, device,
    )  # fmt: skip
    return step, mapped.build


def results(step: Step) -> tuple[Value, ...]:
    """Returns the values of a step."""
    return tuple(Result(spec, step, index) for index, spec in enumerate(step.outputs))
