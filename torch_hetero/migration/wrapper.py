"""The wrappers that stand for patched callables, and what a call through one does.

A call enters its path in the tree of contexts (`context.py`). Where a rule applies, the call is migrated:

- A callable with a strategy is recorded, and its result is a handle. Where the strategy does not cover the call, the
  original runs on the host's data, and the reason is counted. The original never runs after a part of it was done.
- A callable without one is the program's own. Its arrays and tensors are moved, and it runs itself, in its context.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from torch_hetero.migration import session
from torch_hetero.migration.context import Node, current, enter, leave
from torch_hetero.migration.holder import HANDLES, Unreadable, capture, handle_of, migrate, on_host
from torch_hetero.migration.plan import Rule
from torch_hetero.migration.recipe import Source
from torch_hetero.migration.spec import Spec, spec_of
from torch_hetero.migration.strategy import Strategy, Unsupported

__all__ = ["Action", "make_wrapper"]


@dataclass(frozen=True, slots=True)
class Action:
    """The decision for the calls of one path.

    Attributes:
        rule: The plan's rule.
        strategy: The strategy; None for the program's own callables.
        key: The path as text, for reports.
    """

    rule: Rule
    strategy: Strategy | None
    key: str


def make_wrapper(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that stands for a callable.

    Args:
        name: The callable's name in paths.
        original: The callable.
    """
    if inspect.isasyncgenfunction(original):
        return track_async_generator(name, original)
    if inspect.iscoroutinefunction(original):
        return track_coroutine(name, original)
    is_generator = inspect.isgeneratorfunction(original)
    disjoint = HANDLES.isdisjoint

    def wrapper(*positional: Any, **keywords: Any) -> Any:
        parent = current()
        node = parent.children.get(name)
        if node is None:
            node = parent.child(name)
        action = node.action
        if action is None and not node.inner:
            node.calls += 1
            if not keywords and disjoint(map(type, positional)):
                return original(*positional)
            return original(*map(on_host, positional), **on_host(keywords))
        if is_generator:
            return track_generator(node, original(*positional, **keywords))
        if action is not None:
            return act(action, node, original, positional, keywords)
        node.calls += 1
        token = enter(node)
        try:
            return original(*positional, **keywords)
        finally:
            leave(token)

    if isinstance(original, np.ufunc):
        for attribute in ("accumulate", "at", "identity", "nargs", "nin", "nout", "ntypes", "outer", "reduce", "reduceat",
                          "resolve_dtypes", "signature", "types"):  # fmt: skip
            setattr(wrapper, attribute, getattr(original, attribute))
    return wrapper


def act(
    action: Action, node: Node, original: Callable[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Makes a call to which a rule applies."""
    rule = action.rule
    token = enter(node)
    try:
        if action.strategy is None:
            return run_moved(action, original, positional, keywords)
        try:
            check_size(rule, positional, keywords)
            result = migrate(action.strategy, original, positional, keywords, action.key, rule.device, rule.exact)
        except Unsupported as unsupported:
            reason = str(unsupported)
        except Unreadable as error:  # as the original would find when it reads the data
            raise error.__cause__ from None
        except TypeError as error:  # the arguments do not fit: the original says so in its own words
            reason = f"its arguments: {error}"
        except Exception as error:  # a strategy may be anyone's code
            reason = f"its strategy raised {type(error).__name__}: {error}"
        else:
            return on_host(result) if rule.mode == "inline" else result
        return run_original(action, original, positional, keywords, reason)
    finally:
        leave(token)


def run_original(
    action: Action, original: Callable[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any], reason: str
) -> Any:
    """Calls the original on the host's data, and counts the call and the reason."""
    arguments, named = tuple(map(on_host, positional)), on_host(keywords)
    begin = time.perf_counter()
    try:
        return original(*arguments, **named)
    finally:
        active = session.active()
        if active is not None:
            active.report.count(action.key, cpu_calls=1, cpu_seconds=time.perf_counter() - begin, reason=reason)


def run_moved(
    action: Action, original: Callable[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Calls one of the program's own functions with its arrays, images and tensors moved."""
    device = action.rule.device
    here = session.on_device_here()

    def moved(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor) and here:
            host = argument.device.type == "cpu" and argument.layout == torch.strided and not argument.requires_grad
            return argument.to(device) if host else argument
        try:
            value = capture(argument)
        except Unsupported:
            return argument
        except Unreadable as error:
            raise error.__cause__ from None
        return argument if value is None or type(argument) in HANDLES else handle_of(value)

    def returned(result: Any) -> Any:
        if type(result) is torch.Tensor and result.device.type != "cpu" and not result.requires_grad:
            source = Source(Spec("tensor", tuple(result.shape), result.dtype), result)
            source.row = (result.unsqueeze(0), 0)
            return handle_of(source)
        return result

    begin = time.perf_counter()
    result = original(*tree_map(moved, positional), **tree_map(moved, keywords))
    active = session.active()
    if active is not None:
        active.report.count(action.key, device_calls=1, device_seconds=time.perf_counter() - begin)
    return tree_map(returned, result)


def check_size(rule: Rule, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Raises `Unsupported` for calls that are too small for their rule."""
    if not rule.minimum_bytes:
        return
    size = 0
    for argument in (*positional, *keywords.values()):
        if type(argument) in HANDLES:
            return  # the device has it, or will
        try:
            spec = spec_of(argument)
        except TypeError:
            continue
        size += spec.nbytes if spec is not None else 0
    if size < rule.minimum_bytes:
        raise Unsupported(f"its inputs have fewer than {rule.minimum_bytes} bytes")


def track_generator(node: Node, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Runs a generator in a context; code between its steps is outside of it."""

    def step(method: Callable[..., Any], *arguments: Any) -> Any:
        token = enter(node)
        try:
            return method(*arguments)
        finally:
            leave(token)

    method, argument = generator.send, None
    while True:
        try:
            produced = step(method, argument)
        except StopIteration as stop:
            return stop.value
        try:
            argument = yield produced
            method = generator.send
        except GeneratorExit:
            step(generator.close)
            raise
        except BaseException as error:
            method, argument = generator.throw, error


def track_coroutine(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a coroutine function that runs in its context; each task has a context of its own."""

    async def wrapper(*positional: Any, **keywords: Any) -> Any:
        token = enter(current().child(name))
        try:
            return await original(*positional, **keywords)
        finally:
            leave(token)

    return wrapper


def track_async_generator(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an asynchronous generator function whose steps run in its context."""

    async def wrapper(*positional: Any, **keywords: Any) -> AsyncGenerator[Any, Any]:
        node = current().child(name)
        generator = original(*positional, **keywords)
        argument = None
        try:
            while True:
                token = enter(node)
                try:
                    produced = await generator.asend(argument)
                except StopAsyncIteration:
                    return
                finally:
                    leave(token)
                argument = yield produced
        finally:
            await generator.aclose()

    return wrapper
