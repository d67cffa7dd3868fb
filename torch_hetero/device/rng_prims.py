"""Random operators that are run a second time, with the same numbers: dropout under activation checkpointing.

AOTAutograd wraps them in two higher-order operators, one that keeps the generator's state before it runs the random
operator, and one that runs it from that state. Both know a list of devices and nothing of a device's own generator, so
hetero is added here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.utils import _pytree as pytree

from torch_hetero.device.rng import get_rng_state, set_rng_state

__all__ = ["OPERATORS", "add_hetero"]

OPERATORS = (run_and_save_rng_state, run_with_rng_state)

_CHOICE = "impl_backend_select"


def _on_hetero(args: Any) -> bool:
    devices = (leaf.device if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(args))
    return any(isinstance(device, torch.device) and device.type == "hetero" for device in devices)


def _run_and_save(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    return get_rng_state(), operator(*args, **kwargs)


def _run_with(state: torch.Tensor, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    present = get_rng_state()
    set_rng_state(state.cpu())
    try:
        return operator(*args, **kwargs)
    finally:
        set_rng_state(present)


def _add(operator: HigherOrderOperator, run: Callable[..., Any]) -> None:
    others = operator.py_kernels[DispatchKey.BackendSelect]

    def choose(*args: Any, **kwargs: Any) -> Any:
        return (run if _on_hetero((args, kwargs)) else others)(*args, **kwargs)

    operator.py_kernels[DispatchKey.BackendSelect] = choose
    operator._dispatch_cache.clear()
    # The kernels that trace call it too, as a variable of the function that made them all.
    for kernel in operator.python_key_table.values():
        names = kernel.__code__.co_freevars
        if _CHOICE in names:
            kernel.__closure__[names.index(_CHOICE)].cell_contents = choose


def add_hetero() -> None:
    """Lets both operators run on hetero. To be called once."""
    _add(run_and_save_rng_state, _run_and_save)
    _add(run_with_rng_state, _run_with)
