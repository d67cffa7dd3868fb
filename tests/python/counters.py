"""What the device counted between two points; the names are the rows of ops/settings/counters.def.

Tests ask what happened between two points:

    with counting() as seen:
        z = x + y
    assert seen.recorded == 1 and seen.kernels == 0
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# The names that flush reasons have in counters and in explain(), by what the user did.
READ_SCALAR = "read scalar"
COPY_TO_DEVICE = "copy to another device"
DATA_DEPENDENT_SHAPE = "data-dependent shape"
CONTROL_FLOW = "data-dependent control flow"
LEAVE_DISPATCHER = "leave the dispatcher"
NO_META_KERNEL = "operator without meta kernel"
STORAGE_CHANGE = "storage replaced or resized"
SYNCHRONIZE = "synchronize"
PENDING_BYTES = "too many pending bytes"
PENDING_NODES = "too many pending nodes"
EXPLICIT_FLUSH = "flush"
COMPILED = "compiled program"
SYNC_MODE = "HETERO_SYNC"


def snapshot() -> dict[str, Any]:
    """All counters of this process since it began (or since reset_counters)."""
    import torch_hetero

    return torch_hetero._C.counters()


class Seen:
    """The difference of two snapshots; complete when the `with` block has ended."""

    def __init__(self) -> None:
        self._before = snapshot()
        self._after: dict[str, Any] | None = None

    def close(self) -> None:
        self._after = snapshot()

    def _get(self, *path: str) -> int:
        after = self._after if self._after is not None else snapshot()
        return _at(after, path) - _at(self._before, path)

    def _table(self, name: str) -> dict[str, int]:
        after = self._after if self._after is not None else snapshot()
        before = self._before.get(name, {})
        changed = {key: count - before.get(key, 0) for key, count in after.get(name, {}).items()}
        return {key: count for key, count in changed.items() if count}

    def __getattr__(self, name: str) -> Any:
        """Looks up a row of ops/settings/counters.def: a counter by its field, a table by its name."""
        paths = _paths()
        if name not in paths:
            raise AttributeError(f"no counter is named {name!r}; there are: {', '.join(paths)}")
        path = paths[name]
        return self._table(name) if path is None else self._get(*path)

    @property
    def typed(self) -> int:
        return self.typed_nodes

    @property
    def boxed(self) -> int:
        return self.boxed_nodes

    @property
    def recorded(self) -> int:
        """Nodes recorded; views make none."""
        return self.typed + self.boxed

    @property
    def dead(self) -> int:
        return self.dead_nodes

    @property
    def kernels(self) -> int:
        """Kernels run, on whatever device."""
        return sum(self._table("kernels").values())

    def kernels_on(self, device: str) -> int:
        return self._get("kernels", device)

    @property
    def meta_hits(self) -> int:
        """Calls whose output shapes were in the cache, or predicted."""
        return self._get("meta_cache", "hits") + self.predicted_nodes


@functools.cache
def _paths() -> dict[str, tuple[str, ...] | None]:
    """Where each counter is in a snapshot; None for tables."""
    import torch_hetero

    paths: dict[str, tuple[str, ...] | None] = {}
    for row in torch_hetero._C.counter_rows():
        if row["kind"] in ("group", "table"):
            paths[row["name"]] = None
        elif row["field"]:
            paths[row["field"]] = (row["group"], row["name"]) if row["group"] else (row["name"],)
    return paths


def _at(counters: dict[str, Any], path: tuple[str, ...]) -> int:
    value: Any = counters
    for key in path:
        value = value.get(key, 0) if isinstance(value, dict) else value
    return int(value)


@contextmanager
def counting() -> Iterator[Seen]:
    """What the block recorded, flushed and ran; starts with nothing pending."""
    import torch

    torch.hetero.flush()
    seen = Seen()
    try:
        yield seen
    finally:
        seen.close()
