"""Workers of a DataLoader: what they do not compute travels as recipes, and the parent computes it.

Nothing touches a device in a worker. Where a worker fetched a batch, its handles are packed at once (`shipping.ship`), so
that errors of the original functions reach the parent as any error of a dataset does.

Workers that are forked inherit the patches. Others import this package when they unpickle `worker_loop`, which activates the
plan that the environment names; other children do so by the file ``hetero_migration.pth``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import _utils as data_utils

from torch_hetero.migration import session
from torch_hetero.migration.array_handle import ArrayHandle
from torch_hetero.migration.holder import HANDLES, record_call
from torch_hetero.migration.injector import Injector
from torch_hetero.migration.shipping import ship
from torch_hetero.migration.tensor_handle import TensorHandle

__all__ = ["install", "worker_loop"]

_original_loop = data_utils.worker._worker_loop


def install(injector: Injector) -> None:
    """Patches what a DataLoader does in workers and at collation."""
    for fetcher in (data_utils.fetch._MapDatasetFetcher, data_utils.fetch._IterableDatasetFetcher):
        injector.set(fetcher, "fetch", fetcher.__dict__["fetch"], shipping_fetch(fetcher.__dict__["fetch"]))
    injector.set(data_utils.worker, "_worker_loop", data_utils.worker._worker_loop, worker_loop)
    types = data_utils.collate.default_collate_fn_map
    injector.set_item(types, TensorHandle, collate_tensors)
    injector.set_item(types, ArrayHandle, collate_arrays)


def shipping_fetch(original: Any) -> Any:
    """Returns a `fetch` that packs the handles of a batch in a worker."""

    def fetch(self: Any, index: Any) -> Any:
        try:
            batch = original(self, index)
        except Exception:
            if not session.on_device_here() and session.active() is not None:
                session.active().report.write()  # who asks for the reason may ask before the worker ends
            raise
        if not session.on_device_here():
            ship([entry for entry in tree_leaves(batch) if type(entry) in HANDLES])
        return batch

    return fetch


def collate_tensors(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Makes a batch of tensors, of which the first is a handle."""
    return torch.stack(batch, 0)


def collate_arrays(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    """Makes a batch of arrays, of which the first is a handle."""
    return torch.stack([record_call("torch.as_tensor", torch.as_tensor, (entry,), {}) for entry in batch], 0)


def worker_loop(*arguments: Any) -> Any:
    """Runs in a worker: torch's own loop, with the plan complete before, and counters written after."""
    if session.active() is not None:
        session.active().refresh()  # the program's main module is there now
    try:
        return _original_loop(*arguments)
    finally:
        if session.active() is not None:
            session.active().report.write()
