"""``safetensors`` reads tensors to hetero: ``load_file(path, device="hetero")``, and ``safe_open`` likewise.

Its reader knows the devices of a list. Files are read to the CPU, and each tensor moves to the device when it is
asked for.

Source: ``safe_open`` of safetensors 0.4 and later.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_map


def _on_hetero(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.to("hetero") if isinstance(leaf, torch.Tensor) else leaf, value)


class _Proxy:
    """A file, or a slice of a tensor in one, whose tensors move to hetero when they are read."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __enter__(self) -> _Proxy:
        self._inner.__enter__()
        return self

    def __exit__(self, *arguments: Any) -> None:
        self._inner.__exit__(*arguments)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return _on_hetero(self._inner[index])

    def get_slice(self, name: str) -> _Proxy:
        return _Proxy(self._inner.get_slice(name))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            return _on_hetero(method(*arguments, **named))

        return call


def apply(module: ModuleType) -> None:
    """Adapts ``safetensors``."""
    original = module.safe_open

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **named: Any) -> Any:
        """As safetensors' own, which takes no device ``hetero``."""
        if str(device).partition(":")[0] != "hetero":
            return original(filename, framework, device=device, **named)
        return _Proxy(original(filename, framework, device="cpu", **named))

    module.safe_open = safe_open
