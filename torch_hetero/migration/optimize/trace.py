"""Traces a program: every callable that has a strategy is replaced by one that records the call and runs the original.

For each context key the trace has the number of calls, their time, the bytes that they take and return, the sizes that
were seen, copies of a few calls' arguments, and who reads the results. The program computes what it always computes:
no random number is drawn here, and data is copied before the original sees it.
"""

from __future__ import annotations

import copy
import inspect
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, dataloader

from torch_hetero.migration.injector import ImportHook, Injector
from torch_hetero.migration.migrator import resolve
from torch_hetero.migration.names import ORIGINAL, Site
from torch_hetero.migration.optimize.lineage import Follow, Lineage, Made, TracedArray, leaves, plain
from torch_hetero.migration.optimize.loader import Clock, Enough, Timings, innermost
from torch_hetero.migration.optimize.script import Script
from torch_hetero.migration.plan import PlanError, Rule
from torch_hetero.migration.spec import Spec, spec_of
from torch_hetero.migration.strategy import Strategy, all_strategies, find

__all__ = ["BATCH", "OTHER", "PROGRAM", "Sample", "Seen", "Trace", "trace_script"]

# Ends of the flow: data that no traced call made; batches of the DataLoader; code that no strategy knows.
PROGRAM, BATCH, OTHER = "the program", "the batch", "other code"
# Libraries whose functions take results of their own kind that are not computed yet, without being patched.
FOLLOWING = {"numpy": "array", "torch": "tensor"}
SAMPLES = 12
MOST_SAMPLE_BYTES = 1 << 28
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the attributes of other types cannot be set


@dataclass
class Sample:
    """A call's arguments, copied before it was made.

    Attributes:
        sizes: The specs of its data.
        positional: The positional arguments.
        keywords: The keyword arguments.
    """

    sizes: tuple[Spec, ...]
    positional: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass
class Seen:
    """The record of one context key.

    Attributes:
        key: The context key.
        strategy: The strategy of its callable.
        original: The callable.
        patched: Whether a wrapper stands for it; without one it cannot be named in a plan, only follow.
        caller: The key of the traced call within which it is called; empty if there is none.
        calls: The number of calls, and `seconds`, their time.
        bytes_in, bytes_out: Bytes of the arguments and results.
        sizes: Calls by the specs of their data.
        samples: Some of the calls.
        made: Results, and `used`, those that a traced call or a batch has read.
    """

    key: str
    strategy: Strategy
    original: Callable[..., Any]
    patched: bool = True
    caller: str = ""
    calls: int = 0
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    sizes: Counter[tuple[Spec, ...]] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    made: int = 0
    used: int = 0

    @property
    def follows(self) -> bool:
        """Whether the callable takes results that are not computed yet without being patched."""
        kind = FOLLOWING.get(self.strategy.target.split(".")[0])
        return all(spec.kind == kind for sizes in self.sizes for spec in sizes)


@dataclass
class Trace:
    """A traced program.

    Attributes:
        calls: What was recorded, by key.
        flow: From each maker to each reader: [transfers, bytes].
        timings: Waiting and computing.
        batches: The number of batches; 1 for a whole run without DataLoader.
    """

    calls: dict[str, Seen]
    flow: dict[tuple[str, str], list[int]]
    timings: Timings
    batches: int


Path = tuple[
    str, tuple[str, ...]
]  # the dataset's method that the loader calls, or ""; the traced calls that were entered


class Tracer:
    """Records calls."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.injector = Injector()
        self.hook = ImportHook(self.waits_for, lambda module: self.patch_all())
        self.lineage = Lineage()
        self.seen: dict[Path, Seen] = {}
        self.flow: dict[tuple[Any, Any], list[int]] = {}
        self.patched: set[str] = set()  # targets that were looked at, and those that have wrappers
        self.wrapped: set[str] = set()
        self.sample_bytes = 0
        self.local = threading.local()
        self.label = ""
        self.enabled = True

    def install(self) -> None:
        """Patches what is imported, and waits for the rest."""
        self.patch_all()
        self.hook.install()
        TracedArray.recorder = self.record_numpy

    def remove(self) -> None:
        """Puts everything back."""
        self.enabled = False
        TracedArray.recorder = None
        self.hook.remove()
        self.injector.undo()

    def waits_for(self, module: str) -> bool:
        """Whether a module may bring a target."""
        return any(
            strategy.target.startswith(module + ".")
            for strategy in all_strategies()
            if strategy.target not in self.patched
        )

    def patch_all(self) -> None:
        """Patches the targets that are there and not patched yet."""
        count = len(self.patched)
        for strategy in all_strategies():
            target = strategy.target
            if target in self.patched or target.split(".")[0] not in sys.modules:
                continue
            try:
                sites = resolve(Rule(target))
            except PlanError:
                self.patched.add(target)  # another version of the library does not have it
                continue
            if sites is not None:
                self.patched.add(target)
                self.patch(strategy, sites[-1])
        if len(self.patched) > count:
            self.injector.sweep()

    def patch(self, strategy: Strategy, site: Site) -> None:
        """Patches one target; what cannot be patched, such as a method of arrays, is left out.

        Methods of tensors are left out, too, since torch compares them; `Follow` sees what they compute.
        """
        raw = site.raw
        fixed = site.owner is torch.Tensor or isinstance(site.owner, type) and not site.owner.__flags__ & HEAP_TYPE
        if fixed or isinstance(raw, (np.ufunc, type)) or hasattr(raw, ORIGINAL) or inspect.iscoroutinefunction(raw):
            return
        self.injector.patch(site, lambda original: self.wrapper(strategy, original))
        self.wrapped.add(strategy.target)

    def wrapper(self, strategy: Strategy, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what stands for a callable."""

        def traced(*positional: Any, **keywords: Any) -> Any:
            if not self.enabled or getattr(self.local, "off", False):
                return original(*positional, **keywords)
            return self.record(strategy, original, positional, keywords)

        return traced

    def record_numpy(self, target: str, function: Any, positional: Any, keywords: Any) -> Any:
        """Records what numpy computes of a result; returns NotImplemented where there is no strategy."""
        strategy = find(target)
        if strategy is None or not self.enabled or getattr(self.local, "off", False):
            return NotImplemented
        return self.record(strategy, function, tuple(positional), keywords)

    def record(
        self, strategy: Strategy, original: Callable[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Makes a call and writes down what it is."""
        local = self.local
        begin = time.perf_counter()
        data = [entry for entry in leaves((positional, keywords)) if known_spec(entry) is not None]
        sizes = tuple(known_spec(entry) for entry in data)
        library = strategy.target.split(".")[0]
        if not sizes and library in FOLLOWING:
            return original(*positional, **keywords)  # of numbers: nothing to move
        outer: tuple[str, ...] = getattr(local, "path", ())
        if outer and outer[-1].split(".")[0] == library in FOLLOWING:
            return original(*plain(positional), **plain(keywords))  # within numpy or torch: not the program's
        path: Path = (self.label, (*outer, strategy.target))
        seen = self.seen.get(path)
        if seen is None:
            seen = self.seen[path] = Seen("", strategy, original, strategy.target in self.wrapped)
        for entry, spec in zip(data, sizes, strict=True):
            if not outer:
                self.add_flow(self.maker_of(entry), path, spec.nbytes)
        positional, keywords = plain(positional), plain(keywords)
        self.keep_sample(seen, sizes, positional, keywords)
        overhead = getattr(local, "overhead", 0.0)
        local.path = path[1]
        start = time.perf_counter()
        local.overhead = overhead = overhead + start - begin
        try:
            result = original(*positional, **keywords)
        finally:
            local.path = outer
        stop = time.perf_counter()
        seen.calls += 1
        seen.seconds += stop - start - (local.overhead - overhead)
        seen.bytes_in += sum(spec.nbytes for spec in sizes)
        seen.sizes[sizes] += 1
        outputs = [spec for entry in leaves(result) if (spec := known_spec(entry)) is not None]
        seen.bytes_out += sum(spec.nbytes for spec in outputs)
        if outputs and not outer:
            seen.made += 1
            result = self.lineage.mark(result, Made(path))
        local.overhead += time.perf_counter() - stop
        return result

    def keep_sample(
        self, seen: Seen, sizes: tuple[Spec, ...], positional: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        """Copies the arguments of the first calls, and of some with other sizes."""
        size = sum(spec.nbytes for spec in sizes)
        wanted = len(seen.samples) < SAMPLES // 2 or len(seen.samples) < SAMPLES and sizes not in seen.sizes
        if not wanted or self.sample_bytes + size > MOST_SAMPLE_BYTES:
            return
        try:
            seen.samples.append(Sample(sizes, *copy.deepcopy((positional, keywords))))
        except Exception:  # whatever objects of others raise: such a call is no sample
            return
        self.sample_bytes += size

    def maker_of(self, data: Any) -> Any:
        """Returns the path of the call that made data; notes that it was read."""
        made = self.lineage.maker(data)
        if made is None:
            return PROGRAM
        if not made.used:
            made.used = True
            self.seen[made.key].used += 1
        return made.key

    def add_flow(self, maker: Any, reader: Any, size: int) -> None:
        """Counts bytes from one call to another."""
        entry = self.flow.setdefault((maker, reader), [0, 0])
        entry[0] += 1
        entry[1] += size

    def around(self, iterator: Any, fetch: Callable[[], Any]) -> Any:
        """Fetches a batch: calls belong to the iterator's dataset, and the batch reads their results."""
        dataset = innermost(iterator._dataset)
        method = "__iter__" if isinstance(dataset, IterableDataset) else "__getitem__"
        self.label = f"{type(dataset).__name__}/{method}"
        fetcher = iterator._dataset_fetcher
        collate = fetcher.collate_fn
        fetcher.collate_fn = lambda samples: self.collate(collate, samples)
        try:
            with Follow(self.lineage):
                return plain(fetch())
        finally:
            fetcher.collate_fn = collate
            self.label = ""

    def collate(self, collate: Callable[[Any], Any], samples: Any) -> Any:
        """Makes a batch; torch's own functions for this belong to the batch."""
        if collate in (dataloader.default_collate, dataloader.default_convert):
            self.read_by_batch(samples)
            self.local.off = True
            try:
                return collate(plain(samples))
            finally:
                self.local.off = False
        batch = collate(samples)
        self.read_by_batch(batch)
        return batch

    def read_by_batch(self, data: Any) -> None:
        """Notes that results became parts of a batch."""
        for entry in leaves(data):
            if self.lineage.maker(entry) is not None:
                spec = known_spec(entry)
                self.add_flow(self.maker_of(entry), BATCH, spec.nbytes if spec is not None else 0)

    def result(self) -> Trace:
        """Returns what was recorded; of programs with DataLoaders, what was called while they loaded."""
        timings = self.clock.timings
        wanted = {path: seen for path, seen in self.seen.items() if path[0] or not timings.loaders}
        labels: dict[tuple[str, ...], set[str]] = {}
        for label, names in wanted:
            labels.setdefault(names, set()).add(label)
        keys: dict[Any, str] = {PROGRAM: PROGRAM, BATCH: BATCH}
        for label, names in wanted:
            keys[label, names] = "/".join([label] * (len(labels[names]) > 1) + list(names))
        for path, seen in wanted.items():
            seen.key = keys[path]
            seen.caller = keys.get((path[0], path[1][:-1]), "")
        flow = {
            (keys[maker], keys[reader]): amounts
            for (maker, reader), amounts in self.flow.items()
            if maker in keys and reader in keys
        }
        for seen in wanted.values():
            if seen.made > seen.used:
                lost = seen.made - seen.used
                flow[seen.key, OTHER] = [lost, lost * seen.bytes_out // max(1, seen.calls)]
        batches = len(timings.arrivals) if timings.loaders else 1
        return Trace({seen.key: seen for seen in wanted.values()}, flow, timings, max(1, batches))


def known_spec(data: Any) -> Spec | None:
    """Returns the spec of data that could be on a device; None for anything else."""
    try:
        return spec_of(data)
    except TypeError:
        return None


def trace_script(script: Script, batches: int) -> tuple[Trace, int]:
    """Runs a script until it has had some batches, and traces it.

    Args:
        script: It is prepared.
        batches: Of all its DataLoaders together.

    Returns:
        The trace, and the script's exit status; not 0 if it raised, which was shown.
    """
    clock = Clock(batches, inline=True)
    tracer = Tracer(clock)
    clock.around = tracer.around
    clock.install(tracer.injector)
    tracer.install()
    clock.start()
    try:
        status = script.run(lambda module: tracer.patch_all())
    except Enough:
        status = 0
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
    finally:
        clock.stop()
        tracer.remove()
    return tracer.result(), status
