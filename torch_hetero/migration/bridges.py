"""Functions that take handles whether a plan names them or not.

Code in C refuses what only looks like an array. So while a plan is active,

- functions that make a tensor, an array or an image of another kind of data are recorded, if they are given a handle, and
- the functions of cv2, and `numpy.random.shuffle`, get the host's array of a handle, unless a rule says more.

``numpy.asarray`` of an array is for code that wants a real one, and gives it.

Calls without handles go straight to the original.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from torch_hetero.migration.context import UNTRACKED, current
from torch_hetero.migration.holder import HANDLES, on_host, record_call
from torch_hetero.migration.injector import Injector
from torch_hetero.migration.names import ORIGINAL, site_of

__all__ = ["MODULES", "install"]

CONVERSIONS = ("torch.from_numpy", "torch.as_tensor", "torch.tensor", "torch.asarray", "PIL.Image.fromarray")
# Modules whose functions are bridged, also when they are imported later.
MODULES = ("cv2", "PIL.Image")
# Everyone calls these, and they take handles by themselves: other names for them stay.
UNSWEPT = ("numpy.asarray", "numpy.array")


def install(injector: Injector) -> None:
    """Patches the functions of modules that are loaded. REQUIRES: those with rules are patched already."""
    for target in (*CONVERSIONS, *UNSWEPT):
        module, _, name = target.rpartition(".")
        owner = sys.modules.get(module)
        if owner is not None and not hasattr(getattr(owner, name), ORIGINAL):
            injector.patch(
                site_of(target, owner, name), lambda f, target=target: bridge(target, f), target not in UNSWEPT
            )
    # Rows of another sequence are exchanged in Python, which is wrong for views.
    shuffle = site_of("numpy.random.shuffle", np.random, "shuffle")
    if not hasattr(np.random.shuffle, ORIGINAL):
        injector.patch(shuffle, lambda f: bridge("", f))
    opencv = sys.modules.get("cv2")
    if opencv is not None:
        for name, function in vars(opencv).copy().items():
            if type(function).__name__ == "builtin_function_or_method":
                injector.patch(site_of(f"cv2.{name}", opencv, name), lambda f: bridge("", f))


def bridge(target: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that records calls with handles, or gives the original the host's data if `target` is empty."""
    disjoint = HANDLES.isdisjoint

    def wrapper(*positional: Any, **keywords: Any) -> Any:
        if disjoint(map(type, positional)) and (not keywords or disjoint(map(type, keywords.values()))):
            for argument in positional:
                if type(argument) in (list, tuple):
                    break
            else:
                return original(*positional, **keywords)
        if current() is UNTRACKED:
            return original(*positional, **keywords)
        if not target or disjoint_everywhere(positional) or target in UNSWEPT and is_array(positional[0]):
            return original(*map(on_host, positional), **on_host(keywords))
        result = record_call(target, original, positional, keywords)
        return original(*map(on_host, positional), **on_host(keywords)) if result is NotImplemented else result

    return wrapper


def disjoint_everywhere(positional: tuple[Any, ...]) -> bool:
    """Whether no argument is a handle, nor has one in it."""
    return not any(
        type(argument) in HANDLES
        or type(argument) in (list, tuple)
        and any(type(entry) in HANDLES for entry in argument)
        for argument in positional
    )


def is_array(argument: Any) -> bool:
    """Whether something is the handle of an array."""
    return type(argument) in HANDLES and argument._hetero_holder.value.spec.kind == "array"
