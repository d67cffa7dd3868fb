"""Names of callables: from "cv2.resize" or "PIL.Image.Image.resize" to the object, and where it is kept."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["Site", "is_module", "locate", "original_of", "unwrapped"]

# Set on wrappers: the function that they stand for.
ORIGINAL = "_hetero_original"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a callable is kept.

    Attributes:
        target: Its dotted name.
        owner: The module or class that has it.
        name: Its attribute there.
        raw: What the owner's `__dict__`, or that of one of its bases, has: a `staticmethod` is not its function.
        inherited: Whether a base of the class has it.
    """

    target: str
    owner: Any
    name: str
    raw: Any
    inherited: bool


def locate(target: str, load: bool = True) -> Site | None:
    """Finds a callable by its dotted name.

    Args:
        target: Such as "PIL.Image.Image.resize".
        load: Whether modules may be imported; otherwise the result is None if the module was not, or the name may
            come when the import of its package has ended.

    Raises:
        ImportError: The module is not there, or lacks the name.
    """
    parts = target.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:split])
        if module not in sys.modules:
            if not load:
                continue
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
                    raise  # the module is there and lacks one of its own
                continue
        owner: Any = sys.modules[module]
        for place, name in enumerate(parts[split:], split):
            # To ask a library that loads its parts when they are asked for would import them too early.
            absent = isinstance(owner, ModuleType) and name not in vars(owner)
            if not load and absent and is_being_imported(parts[0]):
                return None
            if not hasattr(owner, name):
                if not load and isinstance(owner, ModuleType) and is_module(".".join(parts[: place + 1])):
                    return None
                raise ImportError(f"{'.'.join(parts[:place])} has no {name}{suggestion(name, owner)}")
            if place == len(parts) - 1:
                return site_of(target, owner, name)
            owner = getattr(owner, name)
    if not load:
        return None
    raise ImportError(f"there is no module {parts[0]}")


def is_being_imported(package: str) -> bool:
    """Whether a module of a package has begun to run and not ended."""
    return any(
        getattr(getattr(module, "__spec__", None), "_initializing", False)
        for name, module in sys.modules.copy().items()
        if name == package or name.startswith(package + ".")
    )


def site_of(target: str, owner: Any, name: str) -> Site:
    """Returns where an attribute of a module or class is kept."""
    if isinstance(owner, type):
        for base in owner.__mro__:
            if name in base.__dict__:
                return Site(target, owner, name, base.__dict__[name], base is not owner)
    raw = vars(owner)[name] if name in getattr(owner, "__dict__", {}) else getattr(owner, name)
    return Site(target, owner, name, raw, False)


def is_module(name: str) -> bool:
    """Whether a module could be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def suggestion(name: str, owner: Any) -> str:
    """Returns "; did you mean resize?" if there is something like it."""
    import difflib

    near = difflib.get_close_matches(name, dir(owner), 1)
    return f"; did you mean {near[0]}?" if near else ""


def unwrapped(function: Any) -> Any:
    """Returns the original of a patched function; anything else as it is."""
    return getattr(function, ORIGINAL, function) if callable(function) else function


def original_of(target: str) -> Callable[..., Any]:
    """Returns the callable that a name means, without this package's patch.

    Raises:
        ImportError: The module is not there, or lacks the name.
    """
    site = locate(target)
    return unwrapped(getattr(site.owner, site.name))
