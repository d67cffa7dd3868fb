"""The parameters of a model's call."""

from __future__ import annotations

import inspect
from typing import Any

import torch


def positional_names(model: Any) -> list[str]:
    """The names of the parameters that arguments by position are for.

    There are none where Python cannot tell, as of built-in functions and exported programs.
    """
    if isinstance(model, torch.export.ExportedProgram):
        return []
    try:
        parameters = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model).parameters
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
