"""The only file that knows what the device's counters are called.

Tests ask what happened between two points:

    with counting() as seen:
        z = x + y
    assert seen.recorded == 1 and seen.kernels == 0
"""

from __future__ import annotations

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

    @property
    def typed(self) -> int:
        return self._get("nodes", "typed")

    @property
    def boxed(self) -> int:
        return self._get("nodes", "boxed")

    @property
    def recorded(self) -> int:
        """Nodes recorded; views make none."""
        return self.typed + self.boxed

    @property
    def views(self) -> int:
        return self._get("nodes", "view")

    @property
    def straight(self) -> int:
        """Operators that ran at once instead of being recorded."""
        return self._get("nodes", "straight")

    @property
    def dead(self) -> int:
        return self._get("dead_nodes")

    @property
    def kernels(self) -> int:
        """Kernels run, on whatever device."""
        return sum(self._table("kernels").values())

    @property
    def fused_nodes(self) -> int:
        """Operators that ran in fused kernels."""
        return self._get("fused_nodes")

    @property
    def fusion(self) -> dict[str, int]:
        """What fusion made of the operators of plans that were made (not of resized ones)."""
        return self._table("fusion")

    @property
    def unfused(self) -> dict[str, int]:
        """Operators of plans that were made that did not join others, by `operator: reason`."""
        return self._table("unfused")

    @property
    def batched_nodes(self) -> int:
        """Operators that ran in kernels of several calls."""
        return self._get("batched_nodes")

    @property
    def compiled_groups(self) -> int:
        """Fused kernels that ran machine code."""
        return self._get("compiled_groups")

    @property
    def own_kernels(self) -> dict[str, int]:
        """Kernels of hetero's own that ran in place of PyTorch's."""
        return self._table("own_kernels")

    @property
    def plans_made(self) -> int:
        """Plans that were not made of one for other sizes."""
        return self._get("plans", "made")

    @property
    def plans_replayed(self) -> int:
        """Programs that ran by a plan that was there."""
        return self._get("plans", "replayed")

    @property
    def storages_spilled(self) -> int:
        """Storages that left the host's memory for a file."""
        return self._get("storages_spilled")

    @property
    def plans_resized(self) -> int:
        """Plans that were made of one for other sizes."""
        return self._get("plans", "resized")

    @property
    def captures(self) -> int:
        """Graphs that became compiled programs."""
        return self._get("compiled", "captures")

    @property
    def compiled_calls(self) -> int:
        return self._get("compiled", "calls")

    def kernels_on(self, device: str) -> int:
        return self._get("kernels", device)

    @property
    def flushes(self) -> dict[str, int]:
        return self._table("flushes")

    @property
    def copies(self) -> dict[str, int]:
        return self._table("copies")

    @property
    def segments(self) -> int:
        return self._get("segments")

    @property
    def events(self) -> int:
        return self._get("events")

    @property
    def waits(self) -> int:
        return self._get("waits")

    @property
    def fallbacks(self) -> dict[str, int]:
        return self._table("fallbacks")

    @property
    def meta_hits(self) -> int:
        return self._get("meta_cache", "hits") + self._get("meta_cache", "predicted")

    @property
    def meta_misses(self) -> int:
        return self._get("meta_cache", "misses")


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
