"""What adapters ask and change: whether hetero is the device to choose, and lists of names inside functions."""

from __future__ import annotations

from types import FunctionType

import torch


def is_accelerator() -> bool:
    """Whether hetero is the accelerator that ``torch.accelerator`` answers for: on a machine with a GPU it is not."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == "hetero"


def admit(function: FunctionType, beside: str) -> None:
    """Adds "hetero" to the lists of device names that are written in the body of a function.

    A list whose items are all constants is one constant of the function's code.

    Args:
        function: changed in place.
        beside: a name that only the lists in question have.
    """
    constants = function.__code__.co_consts
    function.__code__ = function.__code__.replace(
        co_consts=tuple(
            type(constant)((*constant, "hetero"))
            if isinstance(constant, (tuple, frozenset)) and beside in constant
            else constant
            for constant in constants
        )
    )
