"""Functions that choose a device when the user named none: hetero where they find nothing but the CPU.

Each asks for the accelerators that its library knows, one after the other, and not ``torch.accelerator``. A program
that asked for the CPU does not get here: the libraries decide that before.

Source: `_FUNCTIONS` of accelerate 1.15, peft 0.21 and sentence-transformers 6.2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch_hetero.adapters.choice import is_accelerator

_FUNCTIONS = {
    "accelerate.state": "PartialState.default_device",
    "peft.utils.other": "infer_device",
    "sentence_transformers.util.environment": "get_device_name",
}


def _or_hetero(choose: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(choose)
    def chosen(*arguments: Any, **named: Any) -> Any:
        device = choose(*arguments, **named)
        if str(device) == "cpu" and is_accelerator():
            return type(device)("hetero")  # a name or a torch.device
        return device

    return chosen


def apply(module: ModuleType) -> None:
    """Adapts a module of `_FUNCTIONS`."""
    *owners, name = _FUNCTIONS[module.__name__].split(".")
    owner: Any = functools.reduce(getattr, owners, module)
    choose = vars(owner)[name]
    setattr(owner, name, property(_or_hetero(choose.fget)) if isinstance(choose, property) else _or_hetero(choose))
