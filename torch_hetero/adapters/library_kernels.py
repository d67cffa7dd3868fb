"""Operators of libraries that the CPU has a kernel for run on hetero by that kernel.

PyTorch gives a device without a kernel of its own the one that composes an operator of others, if there is one. That
may be a loop in Python where the CPU's kernel is compiled. A library may register either at any time: in Python, or by
a shared library whose operators Python first sees as attributes of ``torch.ops``.

Source: ``Library.impl`` of torch/library.py and ``_OpNamespace.__getattr__`` of torch/_ops.py, torch 2.11.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch_hetero import _C

_KEYS = ("", "CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
_OWN = ("aten", "prim", "prims")

# The kernels of shared libraries, which are never unloaded.
_kept: list[Any] = []


def _prefer_in(packet: Any) -> None:
    for overload in packet._overload_names:
        registration = _C.prefer_cpu_kernel(packet._qualified_op_name, overload)
        if registration is not None:
            _kept.append(registration)


def adapt_ops(module: ModuleType) -> None:
    """Adapts ``torch._ops``."""
    original = module._OpNamespace.__getattr__

    @functools.wraps(original)
    def __getattr__(self: Any, op_name: str) -> Any:
        packet = original(self, op_name)
        if self.name not in _OWN:
            _prefer_in(packet)
        return packet

    for namespace in vars(module.ops).copy().values():
        if isinstance(namespace, module._OpNamespace) and namespace.name not in _OWN:
            for name in namespace:
                _prefer_in(getattr(namespace, name))
    module._OpNamespace.__getattr__ = __getattr__


def adapt_library(module: ModuleType) -> None:
    """Adapts ``torch.library``."""
    original = module.Library.impl

    @functools.wraps(original)
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **named: Any) -> None:
        original(self, op_name, fn, dispatch_key, **named)
        if self.ns in _OWN or (dispatch_key or self.dispatch_key) not in _KEYS:
            return
        full = op_name if isinstance(op_name, str) else op_name._name
        name, _, overload = full.rpartition("::")[2].partition(".")
        registration = _C.prefer_cpu_kernel(f"{self.ns}::{name}", overload)
        if registration is not None:
            # The library destroys it with its own.
            self._registration_handles.append(registration)

    module.Library.impl = impl
