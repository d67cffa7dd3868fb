"""The common part of handles: results that are not computed yet, as user code sees them.

A handle looks like the numpy array, PIL image or CPU tensor that the original function would have returned. Its size and
type are known; its elements are computed when something reads them. A handle has a `Holder`, which is in one of two states:

- *recorded*: `value` says how to compute it. Migrated calls read the value and take no bytes from the host.
- *on the host*: something read or changed the elements. The holder has the object that user code shares from then on. A
  migrated call that reads it again compares a checksum, so that what the device has is used if nothing changed.

`migrate` makes a call with a strategy and returns handles.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_hetero.migration import session
from torch_hetero.migration.context import current_key, outside, untracked
from torch_hetero.migration.recipe import Source, Value
from torch_hetero.migration.record import record, results
from torch_hetero.migration.spec import Spec, checksum, spec_of, to_tensor
from torch_hetero.migration.strategy import Strategy, Unsupported, find

__all__ = [
    "HANDLES",
    "Holder",
    "Unreadable",
    "capture",
    "handle_of",
    "migrate",
    "on_host",
    "record_call",
    "register_handle",
    "share",
]

# The types of handles. Their instances have `_hetero_holder`, and `_hetero_host()`, which returns what user code may share.
HANDLES: set[type] = set()
_makers: dict[str, Callable[[Value], Any]] = {}


def register_handle(kind: str, handle: type) -> None:
    """Makes a class the handle of a kind of `Spec`."""
    HANDLES.add(handle)
    _makers[kind] = handle


def handle_of(value: Value) -> Any:
    """Returns a handle for a value, of the kind that its spec says."""
    kind = value.spec.kind
    if kind not in _makers:  # images need PIL or torchvision, which not everyone has
        importlib.import_module(f"torch_hetero.migration.{kind}_handle")
    return _makers[kind](value)


class Holder:
    """The state of a handle; see the module's text.

    A view shares the elements of its base. Views are recorded as if they were copies. When the host reads or changes one of
    them, all become views of one object of the host, as they are in numpy and torch. `base` is the handle that this one is
    a view of, and `view` makes the view of that one's object.
    """

    __slots__ = ("base", "bits", "data", "shipment", "value", "view", "views")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.data: Any = None  # None while recorded
        self.bits = 0  # the checksum of `data`
        self.shipment: tuple[Any, int] | None = None  # on its way to another process: what `shipping.ship` made
        self.base: Holder | None = None
        self.view: Callable[[Any], Any] | None = None
        self.views: list[weakref.ref[Any]] = []  # of handles

    def host(self) -> Any:
        """Returns the host's object, computed if need be. User code may change it."""
        if self.data is None:
            root = self
            while root.base is not None:
                root = root.base
            if root.data is None:
                root.keep(session.materialize(root.value))
                root.settle()
            if self.data is None:  # its base was on the host already
                self.keep(self.view(self.base.host()))
        return self.data

    def settle(self) -> None:
        """Makes the recorded views of this object real ones."""
        for handle in [reference() for reference in self.views]:
            holder = handle._hetero_holder if handle is not None else self
            if holder.data is None:
                holder.keep(holder.view(self.data))
                holder.settle()

    def shared(self) -> bool:
        """Whether other handles share its elements."""
        return self.base is not None or any(reference() is not None for reference in self.views)

    @outside
    def keep(self, data: Any) -> None:
        """From now on the elements are the host's."""
        self.data = data
        self.bits = checksum(to_tensor(data))

    def current(self) -> Value:
        """Returns the value of the elements as they are now."""
        if self.data is None:
            return self.value
        now = to_tensor(self.data)
        bits = checksum(now)
        spec = spec_of(self.data)
        if bits != self.bits or spec != self.value.spec:
            session.count_mutation()
            self.value, self.bits = Source(spec, now.clone(memory_format=torch.contiguous_format)), bits
        else:
            session.count_avoided(self.value)
        return self.value


def share(base: Any, handle: Any, view: Callable[[Any], Any]) -> None:
    """Makes a handle a view of another; `view` makes it of the other's object on the host."""
    holder, above = handle._hetero_holder, base._hetero_holder
    holder.base, holder.view = above, view
    above.views.append(weakref.ref(handle))
    if above.data is not None:
        holder.keep(view(above.data))


class Unreadable(Exception):
    """Data cannot be read; the cause is its own error, such as PIL's for a truncated file."""


class Snapshots:
    """Copies of user code's own arrays, images and tensors, kept while those live."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[weakref.ref, Source, int]] = {}  # with the elements' checksum

    def source(self, data: Any, spec: Spec) -> Source:
        """Returns a copy as a value; the one from before if the elements are still the same."""
        key = id(data)
        entry = self.entries.get(key)
        tensor = to_tensor(data)
        bits = checksum(tensor)
        if entry is not None and entry[0]() is data:
            if entry[1].spec == spec and entry[2] == bits:
                session.count_avoided(entry[1])
                return entry[1]
            session.count_mutation()
        # The tensor of an image is a copy already.
        source = Source(spec, tensor if spec.kind == "image" else tensor.clone(memory_format=torch.contiguous_format))
        self.entries[key] = (weakref.ref(data, lambda _: self.entries.pop(key, None)), source, bits)
        return source


SNAPSHOTS = Snapshots()


@outside
def capture(data: Any) -> Value | None:
    """Returns the value of an argument of a migrated call; None for what is no data.

    Raises:
        Unsupported: The elements cannot be a tensor.
        Unreadable: To read them failed, and may not fail a second time.
    """
    if type(data) in HANDLES:
        return data._hetero_holder.current()
    try:
        spec = spec_of(data)
    except TypeError as error:
        raise Unsupported(str(error)) from None
    try:
        return None if spec is None else SNAPSHOTS.source(data, spec)
    except Exception as error:
        raise Unreadable from error


def on_host(argument: Any) -> Any:
    """Returns an argument with handles replaced by the host's objects; looks into lists, tuples and dicts."""
    kind = type(argument)
    if kind in HANDLES:
        return argument._hetero_host()
    if kind is list or kind is tuple:
        return kind([on_host(entry) for entry in argument]) if any(map(may_hold, argument)) else argument
    if kind is dict:
        return {key: on_host(entry) for key, entry in argument.items()}
    return argument


def may_hold(argument: Any) -> bool:
    """Whether something is a handle, or may have one in it."""
    return type(argument) in HANDLES or type(argument) in (list, tuple, dict)


def migrate(
    strategy: Strategy,
    original: Callable[..., Any],
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    key: str | None = None,
    device: str | None = None,
    exact: bool | None = False,
) -> Any:
    """Records a call; returns handles, as the original would return its results.

    Args:
        strategy: The strategy of the function that is called.
        original: That function.
        positional: The call's arguments.
        keywords: The call's keyword arguments.
        key: The context for reports; the current one and the strategy's target if it is not given.
        device: Where it is computed; where its inputs are if it is not given.
        exact: Whether the result must have the original's bits; None for "if bytes are among the inputs".

    Raises:
        Unsupported: The strategy does not cover the call, failed too often, or is not exact.
        Unreadable: An argument's data cannot be read.
        TypeError: The arguments are not the function's.
    """
    current = session.active()
    reason = current.given_up(strategy.target) if current is not None else None
    if reason is not None:
        raise Unsupported(reason)
    if key is None:
        key = "/".join(filter(None, (current_key(), strategy.target)))
    first = positional[0] if positional else None
    shares = strategy.views and (not positional or isinstance(first, (np.ndarray, torch.Tensor)))
    if shares and type(first) not in HANDLES:
        raise Unsupported("its result shares memory with the program's own data")
    with untracked():
        step, build = record(strategy, original, positional, keywords, capture, key, device)
    if exact is None:
        exact = any(value.spec.dtype == torch.uint8 for value in step.inputs)
    tolerance = strategy.tolerance_of(step.static, step.outputs)
    if exact and not tolerance.exact:
        raise Unsupported(f'it would not have the original\'s bits ({tolerance}); "exact": false allows that')
    handles = [handle_of(value) for value in results(step)]
    if step.outputs[0].kind == "image" and step.inputs[0].spec.kind == "image" and hasattr(positional[0], "info"):
        for handle in handles:
            handle.info = dict(positional[0].info)  # as PIL's methods do
    result = build(*handles) if build is not None else handles[0] if len(handles) == 1 else tuple(handles)
    if shares and type(result) in HANDLES:
        rest, named = tuple(map(on_host, positional[1:])), on_host(keywords)
        share(first, result, lambda data: original(data, *rest, **named))
    return strategy.returned(result, lambda: original(*positional, **keywords))


def record_call(
    target: str, original: Callable[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Records a call with a handle that no rule is for, so that what is on the device stays there.

    Returns NotImplemented where there is no strategy, or it does not cover the call; that is counted.
    """
    strategy = find(target)
    if strategy is None:
        return NotImplemented
    try:
        return migrate(strategy, original, positional, keywords)
    except Unreadable as error:
        raise error.__cause__ from None
    except (Unsupported, TypeError) as error:
        session.count_fallback(target, str(error))
        return NotImplemented
