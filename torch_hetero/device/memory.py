"""Memory: figures of what tensors hold, and the cap on what they may hold of the accelerator's.

Reading a figure does not flush: recorded operators own no memory yet.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator

import torch

from torch_hetero import _C
from torch_hetero.device.identity import DeviceLike, get_device_name, index_of
from torch_hetero.settings.config import config


def set_memory_budget(budget: int | str | None) -> None:
    """Caps what tensors may hold of the accelerator's memory, or of each accelerator's, where there are several.

    Programs that need more stream what they need, or run on the CPU, whichever is predicted to be faster. The cap may
    change at any time; what tensors hold on the accelerator leaves it then. Saved programs (`compile`, `load`) take
    their memory beforehand: below a lower cap a program gives it back at its next call, which plans anew. Those that
    change a state of their own, servers, stage pipelines and executors of C++ keep what they have, and count.

    Args:
        budget: bytes, also as text (``"8GiB"``; KiB, MiB, GiB or TiB); 0 or None for all that the accelerator has.

    Raises:
        ValueError: for anything else, and for sizes of 2**63 bytes or more.
    """
    config.memory_budget = 0 if budget is None else budget


def get_memory_budget() -> int:
    """Returns the cap in bytes, 0 for none."""
    return int(config.memory_budget)


@contextlib.contextmanager
def memory_budget(budget: int | str | None) -> Iterator[None]:
    """Context manager and decorator: `set_memory_budget` for the length of a block, for all threads."""
    with config.override(memory_budget=0 if budget is None else budget):
        yield


def accelerator_memory_stats(number: int = 0) -> OrderedDict[str, int]:
    """Returns the figures of one accelerator's memory, all integers, 0 where there is no such accelerator.

    The names are those of `memory_stats`: ``allocated_bytes.all.peak`` is the most that was ever held there since
    `reset_peak_memory_stats`, and never more than ``limit_bytes``, the cap of `set_memory_budget`, save for what saved
    programs held already when the cap was lowered.

    Args:
        number: which accelerator, from 0; there are several with ``sim:3``.
    """
    return _named_figures(_C.accelerator_stats(number))


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the bytes that tensors occupy now."""
    index_of(device)
    return _C.memory_stats()["allocated_bytes"]


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the most bytes that tensors occupied since the start or `reset_peak_memory_stats`."""
    index_of(device)
    return _C.memory_stats()["peak_bytes"]


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes held for tensors: those in use, and those cached for reuse."""
    index_of(device)
    return _C.memory_stats()["reserved_bytes"]


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the most bytes ever held for tensors."""
    index_of(device)
    stats = _C.memory_stats()
    return stats.get("peak_reserved_bytes", max(stats["peak_bytes"], stats["reserved_bytes"]))


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, int]:
    """Returns the allocator's figures, all integers.

    ``allocated_bytes.all.current``, ``allocated_bytes.all.peak``, ``reserved_bytes.all.current`` and ``num_alloc``
    are named as in ``torch.cuda.memory_stats``; ``reused_blocks`` and ``reused_bytes`` count what needed no new
    memory. They add up the host's memory and the accelerator's, so a tensor that is on both counts twice, and the peak
    is the sum of the two peaks; `accelerator_memory_stats` has the accelerator's alone. ``limit_bytes`` is that of the
    host (``config.memory_limit``), 0 for none.
    """
    index_of(device)
    return _named_figures(_C.memory_stats())


def _named_figures(stats: dict[str, int]) -> OrderedDict[str, int]:
    names = {
        "allocated_bytes": "allocated_bytes.all.current",
        "peak_bytes": "allocated_bytes.all.peak",
        "reserved_bytes": "reserved_bytes.all.current",
        "peak_reserved_bytes": "reserved_bytes.all.peak",
        "allocations": "num_alloc",
    }
    return OrderedDict((names.get(name, name), value) for name, value in stats.items())


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Returns the figures of `memory_stats` as a table of text.

    Args:
        device: ``hetero:0`` in any form.
        abbreviated: whether to leave out figures that are 0.
    """
    stats = {name: value for name, value in memory_stats(device).items() if value or not abbreviated}
    width = max([len(name) for name in stats], default=0)
    lines = [f"memory of {get_device_name()}"]
    for name, value in stats.items():
        readable = f"  ({value / 2**20:,.1f} MiB)" if "bytes" in name else ""
        lines.append(f"  {name:<{width}}  {value:>16,}{readable}")
    return "\n".join(lines)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts `max_memory_allocated` anew from what is allocated now."""
    index_of(device)
    _C.reset_peak_memory_stats()


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counts of allocations back to 0."""
    index_of(device)
    torch._C._accelerator_resetAccumulatedStats(0)


def empty_cache() -> None:
    """Gives memory that no tensor uses back to the operating system."""
    _C.empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns (free, total) bytes: of the configured limit, else of the machine's memory."""
    index_of(device)
    free, total = _C.memory_info()
    return free, total
