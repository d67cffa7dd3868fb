"""The device itself: there is one, ``hetero:0``; choosing it, initializing it, its name.

Every ``device`` argument takes ``None``, an index, a string or a ``torch.device``, and means ``hetero:0`` in all
cases; another index raises ``RuntimeError``, another device type ``ValueError``.
"""

from __future__ import annotations

import torch

from torch_hetero import _C

DeviceLike = torch.device | str | int | None

_initialized = False


def index_of(device: DeviceLike = None) -> int:
    """Returns the index that ``device`` means, which is 0.

    Raises:
        ValueError: for a device of another type.
        RuntimeError: for an index other than 0.
    """
    if device is None:
        return 0
    if isinstance(device, int):
        index: int | None = device
    else:
        device = torch.device(device)
        if device.type != "hetero":
            raise ValueError(f"Expected a hetero device, but got: {device}")
        index = device.index
    if index not in (None, 0):
        raise RuntimeError(f"hetero: invalid device ordinal {index}: there is one device, hetero:0")
    return 0


def is_available() -> bool:
    """Returns whether hetero tensors can be made: always, as it needs no hardware beside the CPU."""
    return True


def device_count() -> int:
    """Returns 1: all compute of the machine is one device."""
    return 1


def is_initialized() -> bool:
    """Returns whether the device was used in this process (and not in a parent that forked it)."""
    return _initialized and not _is_in_bad_fork()


def init() -> None:
    """Initializes the device. There is no need to call it; the first use does.

    Raises:
        RuntimeError: in a process forked after hetero was used.
    """
    _lazy_init()


def _lazy_init() -> None:
    global _initialized
    if _is_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize hetero in forked subprocess. To use hetero with multiprocessing, you must use the "
            "'spawn' start method"
        )
    _initialized = True


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def current_device() -> int:
    """Returns the index of the current device, 0."""
    return 0


def set_device(device: DeviceLike) -> None:
    """Accepts ``hetero:0`` and nothing else; a negative index is ignored, as in ``torch.cuda``."""
    if not (isinstance(device, int) and device < 0):
        index_of(device)


def _exchange_device(device: int) -> int:
    if device >= 0:
        index_of(device)
    return 0


_maybe_exchange_device = _exchange_device


class device:  # noqa: N801, the name torch's device modules use
    """Context manager that selects a device, for code that is written for machines with several.

    Args:
        device: ``hetero:0`` in any form; a negative index or None does nothing.
    """

    def __init__(self, device: DeviceLike) -> None:
        self.idx = device if isinstance(device, int) and device < 0 else index_of(device)
        self.prev_idx = 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        return None


class device_of(device):  # noqa: N801
    """Context manager that selects the device of a tensor; does nothing for a tensor that is elsewhere."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == "hetero" else -1)


def get_device_name(device: DeviceLike = None) -> str:
    """Returns for example ``"hetero (cpu)"`` or ``"hetero (cpu + sim)"``."""
    index_of(device)
    accelerator = _C.accelerator_name()
    return "hetero (cpu)" if accelerator in ("", "none") else f"hetero (cpu + {accelerator})"
