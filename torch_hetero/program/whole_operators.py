"""Operators that stay whole in the graphs of ``torch.compile``.

PyTorch has Python code that computes interpolation by other operators, which Inductor fuses. AOTAutograd uses it
whatever the backend is. It reads each pixel by indices; the operator itself has kernels for images in any layout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._C import DispatchKey

__all__ = ["kept_whole"]

_NAMES = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """While it lasts, PyTorch's Python code for these operators is out of use. The compile lock must be held."""
    packets = [getattr(torch.ops.aten, name) for name in _NAMES if hasattr(torch.ops.aten, name)]
    operators = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    taken = [(operator, {key: operator.py_kernels.pop(key) for key in _KEYS if key in operator.py_kernels})
             for operator in operators]
    for operator in operators:
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in taken:
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()
