"""Measures a program's DataLoaders: how long it waits for each batch, and how long it computes with it.

A batch that the program has not read when it asks for the next one is computed then, so that work that a plan deferred
is always counted. After the last batch that is wanted, `Enough` ends the program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from torch_hetero.migration import session
from torch_hetero.migration.holder import HANDLES
from torch_hetero.migration.injector import Injector

__all__ = ["Clock", "Enough", "LoaderFacts", "Timings", "synchronize"]

BaseIterator = dataloader._BaseDataLoaderIter


class Enough(BaseException):
    """Ends a program after the last batch that is wanted. No `Exception`, so that programs do not catch it."""


@dataclass
class LoaderFacts:
    """The settings of a program's DataLoader.

    Attributes:
        dataset: The class of its dataset.
        batch_size: Samples of a batch; 1 if the program makes batches itself.
        workers: Worker processes, in the program as it is written.
    """

    dataset: str
    batch_size: int
    workers: int


@dataclass
class Timings:
    """The measured times.

    Attributes:
        waits: Seconds that the program waited for each batch.
        arrivals: When each batch arrived, by `time.perf_counter`.
        end: When the program asked for another one after the last, or ended.
        begin: When the program began.
        loaders: The DataLoaders that it used.
    """

    waits: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    begin: float = 0.0
    end: float = 0.0
    loaders: list[LoaderFacts] = field(default_factory=list)

    @property
    def warm(self) -> int:
        """The number of batches at the beginning that are not counted: workers start, and kernels are compiled."""
        return min(max(1, len(self.arrivals) // 5), max(0, len(self.arrivals) - 1))

    @property
    def seconds(self) -> float:
        """Seconds of a batch, from its arrival to that of the next one; of the whole run if there is no DataLoader."""
        if len(self.arrivals) < 2:
            return self.end - self.begin
        return (self.end - self.arrivals[self.warm]) / (len(self.arrivals) - self.warm)

    @property
    def wait_seconds(self) -> float:
        """Seconds of a batch in which the program waited for it."""
        counted = self.waits[self.warm + 1 :]
        return sum(counted) / (len(counted) + 1) if counted else sum(self.waits)

    def as_object(self) -> dict[str, Any]:
        """Returns what another process needs, for `json`."""
        return {
            "seconds": self.seconds, "wait_seconds": self.wait_seconds, "batches": len(self.arrivals),
            "loaders": [vars(loader) for loader in self.loaders],
        }  # fmt: skip


class Clock:
    """Patches DataLoaders' iterators.

    Args:
        limit: The number of batches after which the program ends; None for no limit.
        around: Called with each iterator and a function that fetches its next batch; returns the batch.
        inline: Whether the main process loads all data itself, whatever number of workers the program asks for.
    """

    def __init__(
        self,
        limit: int | None = None,
        around: Callable[[Any, Callable[[], Any]], Any] | None = None,
        inline: bool = False,
    ) -> None:
        self.limit, self.around, self.inline = limit, around, inline
        self.timings = Timings()
        self.facts: dict[int, LoaderFacts] = {}  # by id of a dataset
        self.last: Any = None
        self.local = threading.local()

    def install(self, injector: Injector) -> None:
        """Patches; the injector undoes it."""
        fetch_next, iterate = BaseIterator.__next__, dataloader.DataLoader.__iter__

        def next_batch(iterator: Any) -> Any:
            if getattr(self.local, "inside", False):  # a DataLoader whose dataset has a DataLoader
                return fetch_next(iterator)
            self.local.inside = True
            try:
                return self.next_batch(iterator, lambda: fetch_next(iterator))
            finally:
                self.local.inside = False

        def iterator_of(loader: Any) -> Any:
            self.note(loader)
            return inline_iterator(loader) if self.inline else iterate(loader)

        injector.set(BaseIterator, "__next__", fetch_next, next_batch)
        injector.set(dataloader.DataLoader, "__iter__", iterate, iterator_of)

    def note(self, loader: Any) -> None:
        """Remembers what a DataLoader is."""
        if id(loader.dataset) not in self.facts:
            dataset = innermost(loader.dataset)
            facts = LoaderFacts(type(dataset).__name__, loader.batch_size or batch_size_of(loader), loader.num_workers)
            self.facts[id(loader.dataset)] = facts
            self.timings.loaders.append(facts)

    def start(self) -> None:
        """Notes that the program begins."""
        self.timings.begin = time.perf_counter()

    def stop(self) -> None:
        """Notes that the program ended, by itself or after enough batches."""
        if not self.timings.end:
            settle(self.last)
            synchronize()
            self.timings.end = time.perf_counter()

    def next_batch(self, iterator: Any, fetch: Callable[[], Any]) -> Any:
        """Fetches a batch and measures how long that takes.

        Raises:
            Enough: There were as many batches as are wanted.
        """
        settle(self.last)
        if self.limit is not None and len(self.timings.arrivals) >= self.limit:
            self.stop()
            raise Enough
        begin = time.perf_counter()
        batch = fetch() if self.around is None else self.around(iterator, fetch)
        now = time.perf_counter()
        self.timings.waits.append(now - begin)
        self.timings.arrivals.append(now)
        self.last = batch
        return batch


def innermost(dataset: Any) -> Any:
    """Returns what subsets and the like are made of."""
    while isinstance(getattr(dataset, "dataset", None), torch.utils.data.Dataset):
        dataset = dataset.dataset
    return dataset


def batch_size_of(loader: Any) -> int:
    """Returns the number of samples in a batch of a loader with a batch sampler of its own; 1 if it does not say."""
    size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else 1


def inline_iterator(loader: Any) -> Any:
    """Returns an iterator that loads in this process."""
    workers, timeout = loader.num_workers, loader.timeout
    loader.num_workers, loader.timeout = 0, 0
    try:
        return dataloader._SingleProcessDataLoaderIter(loader)
    finally:
        loader.num_workers, loader.timeout = workers, timeout


def settle(batch: Any) -> None:
    """Computes what a plan deferred and the program did not read."""
    if session.active() is None or batch is None:
        return
    waiting = False
    for leaf in tree_leaves(batch):
        holder = leaf._hetero_holder if type(leaf) in HANDLES else None
        if holder is not None and holder.data is None and holder.value.row is None:
            session.on_device(holder.value)
            waiting = True
    if waiting:
        synchronize()


def synchronize() -> None:
    """Waits for what was submitted to devices."""
    torch.hetero.synchronize()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
