"""How much memory eager CPU needs: the peak of the bytes that living storages hold."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """The most bytes that storages made inside the mode held at once: eager's own peak.

    Args:
        held: gives tensors from before, whose bytes are given back when they die; those of a cache that is replaced,
            say. A function, so that nothing keeps them alive.
        granule: each storage counts as the next multiple of so many bytes.
    """

    def __init__(self, held: Callable[[], Iterable[torch.Tensor]] = list, granule: int = 1) -> None:
        super().__init__()
        self._granule = granule
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()
        for tensor in held():
            self._watch(tensor.untyped_storage())

    def _watch(self, storage: torch.UntypedStorage) -> int:
        """Returns the bytes of the storage, which are given back when it dies."""
        self._known.add(storage._cdata)
        size = -(-storage.nbytes() // self._granule) * self._granule
        weakref.finalize(storage, self._release, storage._cdata, size)
        return size

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        given = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        }
        result = op(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if not isinstance(leaf, torch.Tensor):
                continue
            storage = leaf.untyped_storage()
            if storage._cdata in self._known or storage._cdata in given:
                continue
            self.live += self._watch(storage)
            self.peak = max(self.peak, self.live)
        return result


def eager_peak(
    run: Callable[[], object], held: Callable[[], Iterable[torch.Tensor]] = list, granule: int = 1
) -> int:
    """Bytes that tensors made by `run` hold at once at most, above what was held before; its operators run on CPU.

    What kernels take for themselves is not seen, so the figure is never above the true peak. Bytes of the tensors
    that `held` gives count as given back when they die in `run`. Sizes are rounded up to `granule` bytes.
    """
    with LiveStorages(held, granule) as storages:
        result = run()
    del result
    return storages.peak
