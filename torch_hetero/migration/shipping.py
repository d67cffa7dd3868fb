"""Handles on their way to another process: the recipe and its smallest bytes travel, the device stays where it is.

A worker of a DataLoader pickles the batch that it collated. `ship` turns the recipes of its handles into a `Shipment`:

1. one tensor with the bytes of all sources, which travels by shared memory as any tensor does, and
2. the recipes themselves, pickled, with places in that tensor instead of sources.

Where a later value of a recipe has fewer bytes than what it is made of, such as an image after it was resized, the worker
computes it by the original functions and ships that.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from typing import Any

import torch

from torch_hetero.migration import session
from torch_hetero.migration.context import outside
from torch_hetero.migration.holder import handle_of
from torch_hetero.migration.names import original_of
from torch_hetero.migration.recipe import Source, Step, Value, is_leaf, leaf_data
from torch_hetero.migration.spec import Spec, to_tensor
from torch_hetero.migration.strategy import find

__all__ = ["Shipment", "reduce_handle", "ship"]

ALIGNMENT = 64


class Shipment:
    """The values of handles that travel together, as bytes.

    Args:
        recipes: The pickled values, with places in `packed` instead of sources.
        packed: The bytes of the sources.
        specs: Shape and dtype of each.
    """

    def __init__(self, recipes: bytes, packed: torch.Tensor, specs: list[tuple[tuple[int, ...], torch.dtype]]) -> None:
        self.recipes, self.packed, self.specs = recipes, packed, specs
        self.values: list[Value] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Shipment, (self.recipes, self.packed, self.specs)

    @outside
    def handle(self, index: int) -> Any:
        """Returns a handle for one of the values."""
        if not self.values:
            tensors = []
            place = 0
            for shape, dtype in self.specs:
                size = math.prod(shape) * dtype.itemsize
                tensors.append(self.packed[place : place + size].view(dtype).view(shape))
                place += aligned(size)
            self.values = RecipeUnpickler(io.BytesIO(self.recipes), tensors).load()
        return handle_of(self.values[index])


@outside
def ship(handles: Sequence[Any]) -> None:
    """In a worker: computes what is smaller here and packs the bytes, so that pickling cannot fail later.

    Raises:
        Exception: Errors of the original functions.
    """
    holders = [handle._hetero_holder for handle in handles]
    holders = [holder for holder in holders if holder.data is None and holder.shipment is None]
    values = [holder.value for holder in holders]
    if not values:
        return
    sources = cut(values)
    stream = io.BytesIO()
    RecipePickler(stream, sources).dump(values)
    specs = [(source.spec.shape, source.spec.dtype) for source in sources.values()]
    shipment = Shipment(stream.getvalue(), pack([source.data for source in sources.values()]), specs)
    for index, holder in enumerate(holders):
        holder.shipment = (shipment, index)


def reduce_handle(handle: Any, protocol: Any) -> Any:
    """Returns what pickle needs: in a worker, to make a handle again unless it is on the host; else an ordinary object."""
    holder = handle._hetero_holder
    if parent_process() is None:  # for a file, perhaps, and for whoever may not have this package
        data = copied(handle)
        if holder.value.spec.kind == "image":  # pickle insists that an object's class is that of what it becomes
            return type(data), (), data.__getstate__()
        return data.__reduce_ex__(protocol)
    if holder.data is not None:
        return itself, (copied(handle),)
    ship([handle])
    return Shipment.handle, holder.shipment


@outside
def copied(handle: Any) -> Any:
    """Returns the host's object of a handle; of an image a copy, since the handle itself is one."""
    return handle.copy() if handle._hetero_holder.value.spec.kind == "image" else handle._hetero_host()


def itself(data: Any) -> Any:
    """Returns its argument."""
    return data


def cut(values: Sequence[Value]) -> dict[int, Source]:
    """Returns what recipes are shipped from, by the identity of the value that each stands for.

    These are its sources, or later values that have at most half the bytes of all sources that they need.
    """
    sizes: dict[int, int] = {}
    order: list[Value] = []
    pending: list[tuple[Value, bool]] = [(value, False) for value in values]
    while pending:
        entry, done = pending.pop()
        if id(entry) in sizes:
            continue
        inputs = () if is_leaf(entry) else entry.step.inputs
        if not done:
            pending.append((entry, True))
            pending.extend((below, False) for below in inputs)
            continue
        needed = sum(sizes[id(below)] for below in {id(below): below for below in inputs}.values())
        sizes[id(entry)] = min(needed, entry.spec.nbytes) if inputs else entry.spec.nbytes
        order.append(entry)
    found: dict[int, Source] = {}
    visited: set[int] = set()
    wanted = list(values)
    while wanted:
        entry = wanted.pop()
        if id(entry) in visited:
            continue
        visited.add(id(entry))
        if is_leaf(entry):
            found[id(entry)] = entry if isinstance(entry, Source) else Source(entry.spec, leaf_data(entry).cpu())
            continue
        needed = sum(sizes[id(below)] for below in {id(below): below for below in entry.step.inputs}.values())
        if 2 * entry.spec.nbytes <= needed:
            found[id(entry)] = Source(entry.spec, to_tensor(session.materialize(entry)))
        else:
            wanted.extend(entry.step.inputs)
    return found


def pack(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns the bytes of tensors, each at an aligned place, in shared memory."""
    packed = torch.empty(sum(aligned(tensor.nbytes) for tensor in tensors), dtype=torch.uint8).share_memory_()
    place = 0
    for tensor in tensors:
        packed[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        place += aligned(tensor.nbytes)
    return packed


def aligned(size: int) -> int:
    """Returns the bytes that a tensor of `size` bytes takes among packed ones."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class RecipePickler(pickle.Pickler):
    """Pickles a recipe without the bytes of its sources."""

    def __init__(self, stream: io.BytesIO, sources: dict[int, Source]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.places = {key: (place, source.spec) for place, (key, source) in enumerate(sources.items())}

    def persistent_id(self, entry: Any) -> tuple[int, Spec] | None:
        """Returns the place of a source among the packed tensors."""
        return self.places.get(id(entry)) if isinstance(entry, Value) else None

    def reducer_override(self, entry: Any) -> Any:
        """Names a step's function instead of pickling it: a patched function is not what its name finds."""
        if isinstance(entry, Step):
            original = None if entry.original is original_of(entry.strategy.target) else entry.original
            settings = (
                entry.inputs,
                entry.static,
                entry.sample,
                entry.arguments,
                entry.outputs,
                entry.key,
                entry.device,
            )
            return make_step, (entry.strategy.target, original, *settings)
        return NotImplemented


class RecipeUnpickler(pickle.Unpickler):
    """Reads what `RecipePickler` wrote."""

    def __init__(self, stream: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(stream)
        self.tensors = tensors
        self.sources: dict[int, Source] = {}

    def persistent_load(self, place: tuple[int, Spec]) -> Source:
        """Returns the source with the bytes at a place; one object for each."""
        index, spec = place
        if index not in self.sources:
            self.sources[index] = Source(spec, self.tensors[index])
        return self.sources[index]


def make_step(target: str, original: Callable[..., Any] | None, *settings: Any) -> Step:
    """Returns a step of the function that a target names, or of another `original`."""
    strategy = find(target)
    if strategy is None:
        raise ImportError(
            f"the strategy for {target} is not registered in this process; add its module to the plan's strategies"
        )
    inputs, static, sample, arguments, outputs, key, device = settings
    return Step(strategy, inputs, static, sample, arguments, original or original_of(target), outputs, key, device)
