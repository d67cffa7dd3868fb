"""The counters of a migrated run: for each context key, where its calls ran, what they moved, and why some did not.

Processes that are started while a plan is active, such as workers of a DataLoader, append what they counted to a file of
their own in a folder that all share. `Report.total` sums them. They write at most once a second and when they end.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from torch_hetero.migration.context import left_calls

__all__ = ["KeyCounts", "Report"]

WRITE_SECONDS = 1.0


@dataclass
class KeyCounts:
    """The counters of one context key.

    Attributes:
        device_calls: Calls that a device computed.
        host_calls: Migrated calls whose results the original functions computed, since a worker or one value needed them.
        cpu_calls: Calls that were never migrated; `fallbacks` has the reason of each.
        batches: Batches in which a device computed its calls.
        device_seconds: Time that submitting those batches took on the host.
        cpu_seconds: Time in the original function.
        uploaded, downloaded: Bytes to and from the device.
        avoided: Bytes that were not uploaded, since the device had them.
        differences: Results that debug mode found out of tolerance.
        fallbacks: Calls by the reason why they were not migrated.
    """

    device_calls: int = 0
    host_calls: int = 0
    cpu_calls: int = 0
    batches: int = 0
    device_seconds: float = 0.0
    cpu_seconds: float = 0.0
    uploaded: int = 0
    downloaded: int = 0
    avoided: int = 0
    differences: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)

    def add(self, other: dict[str, Any]) -> None:
        """Adds counters as `vars` gives them."""
        for name, value in other.items():
            if name == "fallbacks":
                self.fallbacks.update(value)
            else:
                setattr(self, name, getattr(self, name) + value)


class Report:
    """Counters by context key, of this process and of its children.

    Thread safety: all methods.
    """

    def __init__(self, directory: str | None = None) -> None:
        self.owner = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="hetero-migration-"))
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self.counts: dict[str, KeyCounts] = {}
        self.mutations = 0
        self.written = time.monotonic()
        if not self.owner:
            Finalize(self, self.write, exitpriority=10)
        else:
            # Where this report is forgotten, or where the process ends, after the children that it waits for.
            Finalize(self, shutil.rmtree, (self.directory, True), exitpriority=-1)

    def after_fork(self) -> None:
        """Starts at zero in a child."""
        self.lock = threading.RLock()
        self.counts, self.mutations, self.owner, self.pid = {}, 0, False, os.getpid()
        Finalize(self, self.write, exitpriority=10)

    def count(self, key: str, *, reason: str | None = None, **amounts: float) -> None:
        """Adds to the counters of a key; `reason` is why a call was not migrated."""
        with self.lock:
            counts = self.counts.get(key)
            if counts is None:
                counts = self.counts[key] = KeyCounts()
            for name, amount in amounts.items():
                setattr(counts, name, getattr(counts, name) + amount)
            if reason is not None:
                counts.fallbacks[reason] += 1
        if not self.owner and time.monotonic() - self.written > WRITE_SECONDS:
            self.write()

    def collect(self) -> None:
        """Takes the calls that wrappers left to the originals; those count in their contexts, to be fast."""
        with self.lock:
            for key, reason, calls in left_calls():
                counts = self.counts.setdefault(key, KeyCounts())
                counts.cpu_calls += calls
                counts.fallbacks[reason] += calls

    def write(self) -> None:
        """In a child: appends what was counted since the last time to its file."""
        self.collect()
        with self.lock:
            if self.owner or not (self.counts or self.mutations) or self.pid != os.getpid():
                return
            line = json.dumps(
                {"counts": {key: vars(counts) for key, counts in self.counts.items()}, "mutations": self.mutations}
            )
            self.counts, self.mutations, self.written = {}, 0, time.monotonic()
        try:
            with open(self.directory / f"{self.pid}.jsonl", "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            pass  # the parent ended and took the folder with it

    def total(self) -> dict[str, KeyCounts]:
        """Returns the counters of this process and of all its children, by key."""
        total: dict[str, KeyCounts] = {}
        self.collect()
        with self.lock:
            for key, counts in self.counts.items():
                total.setdefault(key, KeyCounts()).add(vars(counts))
        for line in self.lines():
            for key, counts in line["counts"].items():
                total.setdefault(key, KeyCounts()).add(counts)
        return total

    def total_mutations(self) -> int:
        """Returns how often an array that the device had was found changed."""
        return self.mutations + sum(line["mutations"] for line in self.lines())

    def lines(self) -> list[dict[str, Any]]:
        """Returns what children wrote; a line that is being written is left for the next time."""
        found = []
        for path in sorted(self.directory.glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue
        return found

    def text(self) -> str:
        """Returns a table for people: one line for each key, then the reasons of its fallbacks."""
        lines = [
            f"{'context':<56} {'device':>8} {'batches':>8} {'host':>8} {'cpu':>8} {'up':>10} {'down':>10} {'avoided':>10}"
        ]
        for key, counts in sorted(self.total().items()):
            lines.append(
                f"{key:<56} {counts.device_calls:>8} {counts.batches:>8} {counts.host_calls:>8} {counts.cpu_calls:>8} "
                f"{size_text(counts.uploaded):>10} {size_text(counts.downloaded):>10} {size_text(counts.avoided):>10}"
            )
            lines.extend(f"    {number} x {reason}" for reason, number in counts.fallbacks.most_common())
        return "\n".join(lines)


def size_text(size: float) -> str:
    """Returns "1.5 MB"."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
