"""Replaces callables of loaded modules by wrappers, everywhere they are bound, and puts everything back.

1. `patch` sets a wrapper where a callable is kept: an attribute of a module or class.
2. `sweep` finds the same object under other names: ``from cv2 import resize`` in a module that is loaded already, a class
   attribute, a default argument. Modules of the library itself keep the original, so that its internals stay as they are.
   Tables that libraries look functions up in by identity get entries for the wrappers (`REGISTRIES`).
3. A journal has each change. `undo` puts back what was there, also where modules that were imported since then took the
   wrapper; what somebody else patched on top of it stays, and is reported.

Names that a sweep cannot reach, such as a `functools.partial` or a local variable, keep the original.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from torch_hetero.adapters.import_hook import ImportHook
from torch_hetero.migration.names import ORIGINAL, Site

__all__ = ["ImportHook", "Injector"]

MISSING = object()

# Where libraries keep {function: {class of its first argument: what is called}}: a module and a name in it.
# Transforms of torchvision's version 2 look up what `functional` has under a name, and would not know a wrapper.
REGISTRIES = (("torchvision.transforms.v2.functional._utils", "_KERNEL_REGISTRY"),)


class Injector:
    """A set of patches. REQUIRES: one thread at a time patches and undoes."""

    def __init__(self) -> None:
        self.journal: list[tuple[Any, str, Any, Any]] = []  # owner, name, what was there or MISSING, what is there now
        self.wrappers: dict[
            int, tuple[Any, Any, str]
        ] = {}  # by id of the original: original, wrapper, root of its library
        self.defaults: list[tuple[Any, tuple[Any, ...]]] = []
        self.items: list[
            tuple[dict[Any, Any], Any, Any, Any]
        ] = []  # dict, key, what was there or MISSING, what is there now

    def patch(
        self, site: Site, wrap: Callable[[Callable[..., Any]], Callable[..., Any]], swept: bool = True
    ) -> Callable[..., Any]:
        """Replaces the callable of a site by `wrap(callable)`; returns the callable. `sweep` finds it if `swept`."""
        raw = site.raw
        original = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
        wrapper = wrap(original)
        try:
            functools.update_wrapper(wrapper, original)
        except (AttributeError, TypeError):  # callables without names
            pass
        setattr(wrapper, ORIGINAL, original)
        self.set(
            site.owner,
            site.name,
            MISSING if site.inherited else raw,
            type(raw)(wrapper) if original is not raw else wrapper,
        )
        if swept:
            self.wrappers[id(original)] = (original, wrapper, site.target.split(".")[0])
        for module, name in REGISTRIES:
            registry = getattr(sys.modules.get(module), name, {})
            if original in registry:
                self.set_item(registry, wrapper, dict.fromkeys(registry[original], wrapper))
        return original

    def set(self, owner: Any, name: str, before: Any, after: Any) -> None:
        """Sets an attribute and writes it down."""
        setattr(owner, name, after)
        self.journal.append((owner, name, before, after))

    def set_item(self, table: dict[Any, Any], key: Any, after: Any) -> None:
        """Sets an entry of a dict and writes it down."""
        self.items.append((table, key, table.get(key, MISSING), after))
        table[key] = after

    def sweep(self) -> None:
        """Replaces the originals wherever loaded modules have them under other names."""
        if not self.wrappers:
            return
        seen: set[int] = set()
        # A copy of a dict is made at once. A list of its items is not: collecting garbage may import or forget modules.
        for module_name, module in sys.modules.copy().items():
            namespace = getattr(module, "__dict__", None)
            root = module_name.split(".")[0]
            if type(namespace) is not dict or root in ("sys", "builtins", "torch_hetero") or id(namespace) in seen:
                continue
            seen.add(id(namespace))
            self.sweep_names(namespace, root)
            if own_code(module):
                self.sweep_code(module, namespace, seen)

    def sweep_names(self, namespace: dict[str, Any], root: str) -> None:
        """Replaces the originals among a module's names."""
        wanted = self.wrappers
        if not wanted.keys().isdisjoint(map(id, namespace.values())):
            for name, value in namespace.copy().items():
                found = wanted.get(id(value))
                if found is not None and found[0] is value and found[2] != root:
                    self.set_item(namespace, name, found[1])

    def sweep_code(self, module: ModuleType, namespace: dict[str, Any], seen: set[int]) -> None:
        """Replaces the originals in the classes and functions that a module of the program defines.

        Their globals may be another dict than the module's: `multiprocessing` runs the main module of a child by `runpy`.
        """
        for value in namespace.copy().values():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            functions: Iterable[Any] = [value]
            if isinstance(value, type):
                self.sweep_class(value)
                functions = vars(value).copy().values()
            for function in functions:
                if isinstance(function, types.FunctionType):
                    self.sweep_defaults(function)
                    if id(function.__globals__) not in seen:
                        seen.add(id(function.__globals__))
                        self.sweep_names(function.__globals__, module.__name__)

    def sweep_class(self, owner: type) -> None:
        """Replaces the originals among a class's attributes and its methods' default arguments."""
        for name, value in vars(owner).copy().items():
            inner = value.__func__ if isinstance(value, staticmethod) else value
            found = self.wrappers.get(id(inner))
            if found is not None and found[0] is inner:
                self.set(owner, name, value, staticmethod(found[1]) if inner is not value else found[1])

    def sweep_defaults(self, function: types.FunctionType) -> None:
        """Replaces the originals among a function's default arguments."""
        defaults = function.__defaults__
        if defaults and any(self.wrappers.get(id(value), (MISSING,))[0] is value for value in defaults):
            self.defaults.append((function, defaults))
            function.__defaults__ = tuple(self.wrappers.get(id(value), (None, value))[1] for value in defaults)

    def undo(self) -> list[str]:
        """Puts everything back; returns one sentence for each name that somebody else patched since."""
        problems = []
        for owner, name, before, after in reversed(self.journal):
            now = vars(owner).get(name, MISSING)
            if now is not after and now is not before:
                if now is not MISSING:
                    problems.append(
                        f"{getattr(owner, '__name__', owner)}.{name} was patched by other code while the plan was active; "
                        "that patch stays, and what it calls is the original again"
                    )
                continue
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        for function, defaults in reversed(self.defaults):
            function.__defaults__ = defaults
        for table, key, before, after in reversed(self.items):
            if table.get(key, MISSING) is not after:
                continue  # the program bound the name to something else
            if before is MISSING:
                del table[key]
            else:
                table[key] = before
        originals = {id(wrapper): (wrapper, original) for original, wrapper, _ in self.wrappers.values()}
        for module in sys.modules.copy().values():  # modules that were imported since
            namespace = getattr(module, "__dict__", None)
            if type(namespace) is not dict or originals.keys().isdisjoint(map(id, namespace.values())):
                continue
            for name, value in namespace.copy().items():
                found = originals.get(id(value))
                if found is not None and found[0] is value:
                    setattr(module, name, found[1])
        self.journal, self.wrappers, self.defaults, self.items = [], {}, [], []
        return problems


def own_code(module: ModuleType) -> bool:
    """Whether a module is the program's own: from a file that came with no package and not with Python."""
    if module.__name__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or module.__name__.split(".")[0] == "torch_hetero":
        return False
    return not any(part in file for part in ("site-packages", "dist-packages")) and not file.startswith(sys.base_prefix)
