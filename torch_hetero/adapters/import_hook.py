"""Calls a function after each import of some modules."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["ImportHook"]


class ImportHook(importlib.abc.MetaPathFinder):
    """Finds modules as the other finders do, with a loader that calls back.

    Args:
        waits: Whether a module's import is of interest.
        imported: Called with the module after it ran.
    """

    def __init__(self, waits: Callable[[str], bool], imported: Callable[[ModuleType], None]) -> None:
        self.waits, self.imported = waits, imported
        self.busy: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Finds a module that is waited for."""
        if name in self.busy or not self.waits(name):
            return None
        self.busy.add(name)  # other hooks ask this one again
        try:
            found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self.busy.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = Loader(spec.loader, self.imported)
        return spec

    def install(self) -> None:
        """Puts the hook before all others."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Takes the hook away."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, then calls back."""

    def __init__(self, loader: importlib.abc.Loader, imported: Callable[[ModuleType], None]) -> None:
        self._loader, self._imported = loader, imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Makes the module."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module. Code that asks it for its loader gets its own."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__._initializing = False  # as importlib does next: the module is whole now
        self._imported(module)
